/* Threads that read at random until their time is over, and the climb that looks for the depth. */
#include "common/machine/drive.h"

#include "common/base/clock.h"
#include "common/base/util.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define ALIGN 4096u

/* Of the probe. A part is small enough that a demand need not wait long behind it, and large enough
 * that a drive isn't busy with commands. */
#define PART_BYTES       (1u << 20)
#define LARGE_PART_BYTES (4u << 20)
#define CELLS_MAX        12u
#define ROUNDS           2u   /* of which each cell's better counts: somebody else may be reading */
#define RISE             1.10 /* what twice the depth must bring */
#define ENOUGH           0.90 /* of the best: the least depth that brings as much is taken */
#define LARGE_RISE       1.15 /* what larger parts must bring */

struct vf_drive {
    uint64_t offset, bytes;
    int fd;
    bool direct;
    uint64_t random;
};

/* ---- the file ------------------------------------------------------------------------------ */

static bool reads_directly(int fd, uint64_t offset)
{
    void *page = NULL;
    if (fd < 0 || posix_memalign(&page, ALIGN, ALIGN) != 0)
        return false;
    bool works = pread(fd, page, ALIGN, (off_t)offset) >= 0;
    free(page);
    return works;
}

/* The file's size is asked of a buffered descriptor, which stays when direct reads don't work. */
static enum vf_code open_file(struct vf_drive *d, const char *path, bool buffered,
                              struct vf_err *err)
{
    uint64_t file_bytes;
    enum vf_code code = vf_open_input(path, &d->fd, &file_bytes, err);
    if (code != VF_OK)
        return code;
    if (d->bytes < ALIGN || d->offset > file_bytes || d->bytes > file_bytes - d->offset)
        return vf_err_set(
            err, VF_ERR_USAGE,
            "%s: %" PRIu64 " bytes at %" PRIu64 " of %" PRIu64
            " can't be measured; allowed are ranges in the file, of %u bytes at least",
            path, d->bytes, d->offset, file_bytes, ALIGN);
    int direct_fd = buffered ? -1 : open(path, O_RDONLY | O_DIRECT | O_CLOEXEC);
    d->direct = reads_directly(direct_fd, d->offset);
    if (!d->direct)
        posix_fadvise(d->fd, 0, 0, POSIX_FADV_RANDOM);
    int unused_fd = d->direct ? d->fd : direct_fd;
    d->fd = d->direct ? direct_fd : d->fd;
    if (unused_fd >= 0)
        close(unused_fd);
    return VF_OK;
}

enum vf_code vf_drive_open(const char *path, uint64_t offset, uint64_t bytes, bool buffered,
                           struct vf_drive **out, struct vf_err *err)
{
    *out = NULL;
    struct vf_drive *d = calloc(1, sizeof *d);
    if (!d)
        return vf_err_set(err, VF_ERR_NO_MEMORY, "%s: out of memory", path);
    d->fd = -1;
    d->offset = vf_round_up(offset, ALIGN);
    d->bytes = bytes - vf_min_u64(bytes, d->offset - offset);
    d->random = 0x9e3779b97f4a7c15u;
    enum vf_code code = open_file(d, path, buffered, err);
    if (code != VF_OK)
        vf_drive_close(d);
    else
        *out = d;
    return code;
}

void vf_drive_close(struct vf_drive *d)
{
    if (!d)
        return;
    if (d->fd >= 0)
        close(d->fd);
    free(d);
}

bool vf_drive_is_direct(const struct vf_drive *d)
{
    return d->direct;
}

/* ---- one cell ------------------------------------------------------------------------------ */

struct run {
    const struct vf_drive *drive;
    uint64_t read_bytes, places;
    atomic_uint_fast64_t until_ns; /* 0: not yet begun. Release by the starter, acquire by all */
    atomic_int failed;             /* errno of a read */
};

struct reader {
    pthread_t thread;
    struct run *run;
    uint8_t *buffer;
    uint64_t random, reads, latency_ns, ended_ns;
};

static uint64_t next_random(uint64_t *state) /* xorshift64* */
{
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * 0x2545f4914f6cdd1du;
}

static bool read_once(struct reader *r)
{
    const struct run *run = r->run;
    uint64_t at = run->drive->offset + next_random(&r->random) % run->places * ALIGN;
    for (uint64_t done = 0; done < run->read_bytes;) {
        ssize_t n =
            pread(run->drive->fd, r->buffer + done, run->read_bytes - done, (off_t)(at + done));
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            atomic_store(&r->run->failed, n < 0 ? errno : EIO);
            return false;
        }
        done += (uint64_t)n;
    }
    if (!run->drive->direct) /* the next read of it must come from the drive, too */
        posix_fadvise(run->drive->fd, (off_t)at, (off_t)run->read_bytes, POSIX_FADV_DONTNEED);
    return true;
}

static void *reader_main(void *arg)
{
    struct reader *r = arg;
    uint64_t until_ns, now_ns;
    while ((until_ns = atomic_load_explicit(&r->run->until_ns, memory_order_acquire)) == 0)
        usleep(20);
    do { /* one read at least, however late this thread gets its turn */
        now_ns = vf_now_ns();
        if (!read_once(r))
            return NULL;
        r->ended_ns = vf_now_ns();
        r->latency_ns += r->ended_ns - now_ns;
        r->reads++;
    } while (r->ended_ns < until_ns);
    return NULL;
}

static void sum_readers(const struct reader *readers, uint32_t n, uint64_t began_ns,
                        struct vf_drive_cell *cell)
{
    uint64_t reads = 0, latency_ns = 0, ended_ns = began_ns + 1;
    for (uint32_t i = 0; i < n; i++) {
        reads += readers[i].reads;
        latency_ns += readers[i].latency_ns;
        ended_ns = vf_max_u64(ended_ns, readers[i].ended_ns);
    }
    cell->reads = reads;
    cell->bytes_per_s = (double)(reads * cell->read_bytes) / ((double)(ended_ns - began_ns) * 1e-9);
    cell->latency_ms = (double)latency_ns / (double)reads * 1e-6;
}

static enum vf_code run_readers(struct run *run, struct reader *readers, uint64_t duration_ns,
                                struct vf_drive_cell *cell, struct vf_err *err)
{
    uint32_t started = 0;
    int rc = 0;
    for (; started < cell->depth && rc == 0; started++) {
        rc = pthread_create(&readers[started].thread, NULL, reader_main, &readers[started]);
        if (rc != 0)
            break;
    }
    uint64_t began_ns = vf_now_ns();
    uint64_t until_ns = rc == 0 ? began_ns + duration_ns : 1;
    atomic_store_explicit(&run->until_ns, until_ns, memory_order_release);
    for (uint32_t i = 0; i < started; i++)
        pthread_join(readers[i].thread, NULL);
    if (rc != 0)
        return vf_err_errno(err, VF_ERR_NO_MEMORY, rc, "can't start %u reading threads",
                            cell->depth);
    int failed = atomic_load(&run->failed);
    if (failed)
        return vf_err_errno(err, VF_ERR_IO, failed, "a read of %" PRIu64 " bytes",
                            cell->read_bytes);
    sum_readers(readers, started, began_ns, cell);
    return VF_OK;
}

enum vf_code vf_drive_measure(struct vf_drive *d, uint64_t duration_ns, struct vf_drive_cell *cell,
                              struct vf_err *err)
{
    VF_ASSERT(cell->depth >= 1 && cell->depth <= VF_DRIVE_DEPTH_MAX);
    VF_ASSERT(cell->read_bytes % ALIGN == 0 && cell->read_bytes >= ALIGN);
    VF_ASSERT(cell->read_bytes <= d->bytes &&
              cell->depth * cell->read_bytes <= VF_DRIVE_BUFFER_MAX);
    struct run run = {.drive = d,
                      .read_bytes = cell->read_bytes,
                      .places = (d->bytes - cell->read_bytes) / ALIGN + 1};
    struct reader *readers = calloc(cell->depth, sizeof *readers);
    size_t bytes = cell->depth * cell->read_bytes;
    uint8_t *buffer = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    enum vf_code code = VF_OK;
    if (!readers || buffer == MAP_FAILED)
        code = vf_err_set(err, VF_ERR_NO_MEMORY, "no memory for %zu bytes of reads", bytes);
    for (uint32_t i = 0; code == VF_OK && i < cell->depth; i++)
        readers[i] = (struct reader){.run = &run,
                                     .buffer = buffer + i * cell->read_bytes,
                                     .random = next_random(&d->random) | 1};
    if (code == VF_OK)
        code = run_readers(&run, readers, duration_ns, cell, err);
    if (buffer != MAP_FAILED)
        munmap(buffer, bytes);
    free(readers);
    return code;
}

/* ---- the probe ----------------------------------------------------------------------------- */

struct probe {
    struct vf_drive *drive;
    uint64_t cell_ns, until_ns;
    struct vf_drive_cell cells[CELLS_MAX];
    uint32_t count;
};

/* Measures a cell and keeps the better of what it has shown so far. */
static enum vf_code measure_again(struct probe *p, struct vf_drive_cell *cell, struct vf_err *err)
{
    struct vf_drive_cell now = *cell;
    enum vf_code code = vf_drive_measure(p->drive, p->cell_ns, &now, err);
    if (code == VF_OK && now.bytes_per_s > cell->bytes_per_s)
        *cell = now;
    return code;
}

static bool has_time(const struct probe *p)
{
    return p->count == 0 || vf_now_ns() + p->cell_ns <= p->until_ns;
}

/* Doubles the depth as long as it helps: two steps without a rise end it. */
static enum vf_code climb(struct probe *p, uint64_t read_bytes, uint32_t depth_max,
                          struct vf_err *err)
{
    double best = 0;
    uint32_t idle_steps = 0;
    for (uint32_t depth = 1; depth <= depth_max && idle_steps < 2 && p->count < CELLS_MAX &&
                             has_time(p) && depth * read_bytes <= VF_DRIVE_BUFFER_MAX;
         depth *= 2) {
        struct vf_drive_cell *cell = &p->cells[p->count++];
        *cell = (struct vf_drive_cell){.read_bytes = read_bytes, .depth = depth};
        enum vf_code code = measure_again(p, cell, err);
        if (code != VF_OK)
            return code;
        idle_steps = cell->bytes_per_s < best * RISE ? idle_steps + 1 : 0;
        best = cell->bytes_per_s > best ? cell->bytes_per_s : best;
    }
    return VF_OK;
}

/* The least depth of cells [begin, end) that comes near the best of them. */
static const struct vf_drive_cell *choose(const struct probe *p, uint32_t begin, uint32_t end)
{
    double best = 0;
    for (uint32_t i = begin; i < end; i++)
        best = p->cells[i].bytes_per_s > best ? p->cells[i].bytes_per_s : best;
    uint32_t i = begin;
    while (p->cells[i].bytes_per_s < best * ENOUGH)
        i++;
    return &p->cells[i];
}

/* Of cells with parts of `most` and, from `small_count` on, with larger ones, which may be of
 * several records: these say how large a read should be, but not how single records are read. */
static struct vf_drive_choice choose_reads(const struct probe *p, uint32_t small_count,
                                           uint64_t most)
{
    const struct vf_drive_cell *chosen = choose(p, 0, small_count), *larger = NULL;
    if (p->count > small_count)
        larger = choose(p, small_count, p->count);
    if (larger && larger->bytes_per_s <= chosen->bytes_per_s * LARGE_RISE)
        larger = NULL;
    if (larger && larger->read_bytes <= most)
        chosen = larger;
    return (struct vf_drive_choice){.depth = chosen->depth < 2 ? 2 : chosen->depth,
                                    .read_bytes = larger ? larger->read_bytes : chosen->read_bytes,
                                    .bytes_per_s = chosen->bytes_per_s,
                                    .latency_ms = chosen->latency_ms};
}

enum vf_code vf_drive_probe(struct vf_drive *d, uint64_t record_bytes, uint64_t budget_ns,
                            struct vf_drive_choice *out, struct vf_err *err)
{
    struct probe p = {
        .drive = d, .cell_ns = budget_ns / CELLS_MAX, .until_ns = vf_now_ns() + budget_ns};
    uint64_t most = vf_min_u64(record_bytes, d->bytes) / ALIGN * ALIGN;
    uint64_t part = vf_min_u64(most, PART_BYTES), large = vf_min_u64(most, LARGE_PART_BYTES);
    if (most <= PART_BYTES / 2) /* several records to a read */
        large = vf_min_u64(PART_BYTES, d->bytes / ALIGN * ALIGN);
    enum vf_code code = climb(&p, part, VF_DRIVE_DEPTH_MAX, err);
    uint32_t small_count = p.count;
    if (code == VF_OK && large > part)
        code = climb(&p, large, 2, err);
    for (uint32_t round = 1; round < ROUNDS && code == VF_OK; round++)
        for (uint32_t i = 0; i < p.count && code == VF_OK; i++)
            if (has_time(&p))
                code = measure_again(&p, &p.cells[i], err);
    if (code != VF_OK)
        return code;
    *out = choose_reads(&p, small_count, most);
    return VF_OK;
}
