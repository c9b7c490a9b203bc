# Bash completion of the vflow programs: each tells its own words (--help=words).

_vflow()
{
    local program=$1 current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]}
    local command=() takes words
    COMPREPLY=()
    case ${program##*/} in
    vflow-coordinator | vflow-client | vflow-bench)
        if [ "$COMP_CWORD" -eq 1 ]; then
            words=$("$program" --help=words 2>/dev/null)
            mapfile -t COMPREPLY < <(compgen -W "$words --help --version" -- "$current")
            return
        fi
        command=("${COMP_WORDS[1]}")
        ;;
    esac
    words=$("$program" "${command[@]}" --help=words 2>/dev/null)
    # --name=value arrives as three words
    if [ "$current" = = ]; then
        current=
    elif [ "$previous" = = ]; then
        previous=${COMP_WORDS[COMP_CWORD - 2]}
    fi
    takes=$(awk -F '\t' -v option="$previous" '$1 == option { print $2 }' <<<"$words")
    case $takes in
    *FILE* | *DIR* | *.npy | *MODEL*)
        compopt -o filenames 2>/dev/null
        mapfile -t COMPREPLY < <(compgen -f -- "$current")
        ;;
    *'|'*) # of "N|random" the word
        mapfile -t COMPREPLY < <(compgen -W "$(tr '|' '\n' <<<"$takes" | grep -v '^[A-Z]')" -- "$current")
        ;;
    ?*) ;; # a number or a text: nobody but the user knows
    *)
        if [ "${current:0:1}" = - ]; then
            mapfile -t COMPREPLY < <(compgen -W "$(cut -f 1 <<<"$words")" -- "$current")
        else
            compopt -o filenames 2>/dev/null
            mapfile -t COMPREPLY < <(compgen -f -- "$current")
        fi
        ;;
    esac
}

complete -F _vflow vflow-convert vflow-inspect vflow-coordinator vflow-client vflow-bench \
    vflow-stage-worker vflow-io-worker
