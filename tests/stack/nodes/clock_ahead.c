/* Preloaded into every process of a test node: its wall clock is CLOCK_AHEAD_S seconds ahead (behind, if negative).
 *
 * Only the wall clock; the monotonic one is the time namespace's. Waits until a wall time are put back before they go
 * to the kernel. (libfaketime 0.9.10 makes time.sleep of Python 3.11 fail: an absolute clock_nanosleep.)
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>

#define SECOND 1000000000LL
/* No machine has been up for so long, and no wall clock says less. */
#define WALL_S 1000000000LL

static long long ahead_ns;

__attribute__((constructor)) static void read_setting(void)
{
    const char *text = getenv("CLOCK_AHEAD_S");
    ahead_ns = text ? (long long)(atof(text) * 1e9) : 0;
}

static void shift(struct timespec *at, long long by_ns)
{
    long long ns = at->tv_nsec + by_ns;
    at->tv_sec += ns / SECOND;
    ns %= SECOND;
    if (ns < 0) {
        ns += SECOND;
        at->tv_sec -= 1;
    }
    at->tv_nsec = ns;
}

int clock_gettime(clockid_t clock, struct timespec *at)
{
    static int (*next)(clockid_t, struct timespec *);
    if (!next)
        next = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int status = next(clock, at);
    if (!status && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        shift(at, ahead_ns);
    return status;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone)
{
    (void)zone;
    struct timespec now;
    int status = clock_gettime(CLOCK_REALTIME, &now);
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return status;
}

time_t time(time_t *at)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at)
        *at = now.tv_sec;
    return now.tv_sec;
}

/* Where it is not said which clock is meant, the number tells. */
static struct timespec true_time(const struct timespec *until)
{
    struct timespec at = *until;
    if (at.tv_sec > WALL_S)
        shift(&at, -ahead_ns);
    return at;
}

#define NEXT(name, version)                                                                                            \
    static __typeof__(&name) next;                                                                                     \
    if (!next) {                                                                                                       \
        next = (__typeof__(&name))dlvsym(RTLD_NEXT, #name, version);                                                   \
        if (!next)                                                                                                     \
            next = (__typeof__(&name))dlsym(RTLD_NEXT, #name);                                                         \
    }

int pthread_cond_timedwait(pthread_cond_t *restrict cond, pthread_mutex_t *restrict mutex,
                           const struct timespec *restrict until)
{
    NEXT(pthread_cond_timedwait, "GLIBC_2.3.2")
    struct timespec at = true_time(until);
    return next(cond, mutex, &at);
}

int pthread_cond_clockwait(pthread_cond_t *restrict cond, pthread_mutex_t *restrict mutex, clockid_t clock,
                           const struct timespec *restrict until)
{
    NEXT(pthread_cond_clockwait, "GLIBC_2.34")
    struct timespec at = clock == CLOCK_REALTIME ? true_time(until) : *until;
    return next(cond, mutex, clock, &at);
}

int sem_timedwait(sem_t *restrict sem, const struct timespec *restrict until)
{
    NEXT(sem_timedwait, "GLIBC_2.34")
    struct timespec at = true_time(until);
    return next(sem, &at);
}

int sem_clockwait(sem_t *restrict sem, clockid_t clock, const struct timespec *restrict until)
{
    NEXT(sem_clockwait, "GLIBC_2.34")
    struct timespec at = clock == CLOCK_REALTIME ? true_time(until) : *until;
    return next(sem, clock, &at);
}
