/* Key files: what keygen writes is read back, and every fault is named. */
#include "common/run/curve_keys.h"
#include "tap.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <zmq.h>

static char dir[] = "/tmp/vf-keys-XXXXXX";

static const char *in_dir(const char *name)
{
    static char path[4][128];
    static int next;
    char *p = path[next++ % 4];
    snprintf(p, sizeof path[0], "%s/%s", dir, name);
    return p;
}

static const char *write_file(const char *name, const char *text, size_t n, mode_t mode)
{
    const char *path = in_dir(name);
    FILE *f = fopen(path, "w");
    if (!f || fwrite(text, 1, n, f) != n || fclose(f) != 0 || chmod(path, mode) != 0)
        abort();
    return path;
}

static const char *file(const char *text)
{
    return write_file("file", text, strlen(text), 0600);
}

enum reader { READ_PAIR, READ_PUBLIC, READ_LIST };

static void refuses(enum reader reader, const char *path, enum vf_code code, const char *word,
                    const char *what)
{
    struct vf_err err = {0};
    struct vf_curve_keys keys;
    struct vf_curve_list list;
    char key[VF_CURVE_KEY_CHARS + 1];
    enum vf_code got = reader == READ_PAIR     ? vf_curve_keys_read(path, &keys, &err)
                       : reader == READ_PUBLIC ? vf_curve_public_read(path, key, &err)
                                               : vf_curve_list_read(path, &list, &err);
    if (!ok(got == code && err.code == code && strstr(err.text, word), "%s", what))
        note("%s: %s", vf_code_name(got), err.text);
}

static void test_round_trip(void)
{
    struct vf_err err = {0};
    struct vf_curve_keys made, read;
    char key[VF_CURVE_KEY_CHARS + 1];
    struct vf_curve_list list;
    uint8_t raw[VF_CURVE_KEY_BYTES];
    ok(vf_curve_keys_generate(&made, &err) == VF_OK && strlen(made.public_key) == 40 &&
           strlen(made.secret_key) == 40,
       "a pair is made");
    ok(vf_curve_keys_write(&made, in_dir("pair"), &err) == VF_OK, "and written");
    ok(vf_curve_keys_read(in_dir("pair.key"), &read, &err) == VF_OK &&
           memcmp(&read, &made, sizeof made) == 0,
       "and read back");
    ok(vf_curve_public_read(in_dir("pair.pub"), key, &err) == VF_OK &&
           strcmp(key, made.public_key) == 0,
       "its public half too");
    zmq_z85_decode(raw, made.public_key);
    ok(vf_curve_list_read(in_dir("pair.pub"), &list, &err) == VF_OK && list.count == 1 &&
           vf_curve_list_has(&list, raw),
       "which is a list of one");
    raw[31] ^= 1;
    ok(!vf_curve_list_has(&list, raw), "that has no other key");
    vf_curve_list_deinit(&list);
    ok(vf_curve_keys_write(&made, in_dir("pair"), &err) == VF_ERR_USAGE, "nothing is overwritten");
    ok(vf_curve_keys_write(&made, in_dir("no/such"), &err) == VF_ERR_IO, "a folder must exist");
}

static void test_lists(void)
{
    struct vf_err err = {0};
    struct vf_curve_list list;
    struct vf_curve_keys keys[5];
    uint8_t raw[VF_CURVE_KEY_BYTES];
    char text[1024] = "# clients\n\n";
    for (int i = 0; i < 5; i++) {
        vf_curve_keys_generate(&keys[i], &err);
        size_t n = strlen(text);
        snprintf(text + n, sizeof text - n, "  public\t%s client %d%s", keys[i].public_key, i,
                 i == 4 ? "" : "\r\n");
    }
    int found = 0;
    ok(vf_curve_list_read(file(text), &list, &err) == VF_OK && list.count == 5,
       "five keys with comments, tabs and no last newline");
    for (int i = 0; i < 5; i++) {
        zmq_z85_decode(raw, keys[i].public_key);
        found += vf_curve_list_has(&list, raw);
    }
    ok(found == 5, "all are there");
    vf_curve_list_deinit(&list);
}

static void test_faults(void)
{
    static const char pair[] = "public rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7\n"
                               "secret JTKVSB%%)wK0E.X)V>+}o?pNmC{O&4W4b!Ni{Lh6\n";
    static const char other[] = "public Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hID\n";
    char text[400];
    struct vf_err err = {0};
    struct vf_curve_keys keys;
    ok(vf_curve_keys_read(file(pair), &keys, &err) == VF_OK, "the pair of ZeroMQ's documentation");
    refuses(READ_PAIR, write_file("open", pair, strlen(pair), 0640), VF_ERR_DENIED, "0640",
            "a secret that a group can read");
    snprintf(text, sizeof text, "%s%s", other, strchr(pair, '\n') + 1);
    refuses(READ_PAIR, file(text), VF_ERR_CORRUPT, "doesn't belong", "halves of two pairs");
    snprintf(text, sizeof text, "%s%s", pair, other);
    refuses(READ_PAIR, file(text), VF_ERR_CORRUPT, "2 public", "three keys in a key file");
    refuses(READ_PAIR, file(other), VF_ERR_CORRUPT, "0 secret", "a key file without its secret");
    refuses(READ_PUBLIC, file(pair), VF_ERR_CORRUPT, ".pub", "a secret where none belongs");
    refuses(READ_LIST, file(pair), VF_ERR_CORRUPT, ".pub", "a secret in a list");
    refuses(READ_LIST, file("# none\n"), VF_ERR_CORRUPT, "0 public", "an empty list");
    refuses(READ_LIST, file(""), VF_ERR_CORRUPT, "0 public", "an empty file");
    snprintf(text, sizeof text, "%s%s", other, other);
    refuses(READ_PUBLIC, file(text), VF_ERR_CORRUPT, "2 public", "two keys where one belongs");
    refuses(READ_LIST, file("public\n"), VF_ERR_CORRUPT, "line 1", "a key that isn't there");
    refuses(READ_LIST, file("\n\npublic short\n"), VF_ERR_CORRUPT, "line 3", "a short key");
    refuses(READ_LIST, file("public Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hI\x7f\n"), VF_ERR_CORRUPT,
            "Z85", "a character that isn't Z85");
    refuses(READ_LIST,
            file("public \xc3\xa4\xc3\xa4\xc3\xa4\xc3\xa4\xc3\xa4\xc3\xa4\xc3\xa4\xc3\xa4"
                 "\xc3\xa4\xc3\xa4\xc3\xa4\xc3\xa4\xc3\xa4\xc3\xa4\xc3\xa4\xc3\xa4\xc3\xa4"
                 "\xc3\xa4\xc3\xa4\xc3\xa4\n"),
            VF_ERR_CORRUPT, "Z85", "forty bytes that aren't ASCII");
    refuses(READ_LIST, file("private x\n"), VF_ERR_CORRUPT, "private", "an unknown word");
    refuses(READ_LIST, write_file("nul", "public\0x", 8, 0600), VF_ERR_CORRUPT, "byte 6", "a NUL");
    refuses(READ_LIST, in_dir("none"), VF_ERR_NOT_FOUND, "none", "a list that isn't there");
    refuses(READ_PAIR, in_dir("none"), VF_ERR_NOT_FOUND, "none", "a key file that isn't there");
}

static void clean_up(void)
{
    const char *names[] = {"pair.key", "pair.pub", "file", "open", "nul"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        unlink(in_dir(names[i]));
    rmdir(dir);
}

int main(void)
{
    plan(28);
    if (!mkdtemp(dir))
        abort();
    test_round_trip();
    test_lists();
    test_faults();
    clean_up();
    return 0;
}
