/* A wall clock of its own for a program under chaos: CLOCK_REALTIME, moved as a file says.
 *
 * LD_PRELOAD this, with CHAOS_CLOCK naming a file of two numbers: seconds to add, and drift, which
 * is added per second of CLOCK_BOOTTIME since the third number. No other clock and no sleep
 * changes. The file is mapped: the harness writes three doubles into it, each in one store.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

struct moved {
    double seconds, drift, since;
};

static const struct moved *moved;

__attribute__((constructor)) static void open_clock(void)
{
    const char *path = getenv("CHAOS_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0)
        return;
    void *at = mmap(NULL, sizeof(struct moved), PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (at != MAP_FAILED)
        moved = at;
}

static void move(struct timespec *now)
{
    if (!moved)
        return;
    struct timespec boot;
    syscall(SYS_clock_gettime, CLOCK_BOOTTIME, &boot);
    double gone = boot.tv_sec + boot.tv_nsec / 1e9 - moved->since;
    double ahead = moved->seconds + moved->drift * gone;
    long long ns = now->tv_nsec + (long long)(ahead * 1e9);
    now->tv_sec += ns / 1000000000LL;
    now->tv_nsec = ns % 1000000000LL;
    if (now->tv_nsec < 0) {
        now->tv_nsec += 1000000000LL;
        now->tv_sec -= 1;
    }
}

int clock_gettime(clockid_t id, struct timespec *now)
{
    static int (*real)(clockid_t, struct timespec *);
    if (!real)
        real = dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(id, now);
    if (result == 0 && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE))
        move(now);
    return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
    struct timespec exact;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &exact))
        return -1;
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *at)
{
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    if (at)
        *at = exact.tv_sec;
    return exact.tv_sec;
}
