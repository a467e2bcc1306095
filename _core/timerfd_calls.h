/* The system calls of timerfd.pyx; where the system has none, creation fails with ENOSYS and all else compiles.
   -DMR_NO_TIMERFD builds as such a system would, for the test of it. */
#ifndef MR_TIMERFD_CALLS_H
#define MR_TIMERFD_CALLS_H

#include <errno.h>
#include <stdint.h>
#include <time.h>

#if defined(__linux__) && defined(__has_include) && !defined(MR_NO_TIMERFD)
#if __has_include(<sys/timerfd.h>)
#include <sys/timerfd.h>
#define MR_HAS_TIMERFD 1
#endif
#endif

#if defined(__linux__) && !defined(MR_NO_TIMERFD)
#define MR_HAS_CLOCK_NANOSLEEP 1
#else
#define MR_HAS_CLOCK_NANOSLEEP 0
#endif

#define MR_NS_PER_S 1000000000

static inline struct timespec mr_timespec(int64_t ns) {
    struct timespec value;
    value.tv_sec = (time_t)(ns / MR_NS_PER_S);
    value.tv_nsec = (long)(ns % MR_NS_PER_S);
    return value;
}

#ifdef MR_HAS_TIMERFD

/* A descriptor, or -1 with errno. */
static inline int mr_timerfd_create(void) {
    return timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
}

/* Absolute, once; 0 disarms. Forgets expiries not yet read. 0, or -1 with errno. */
static inline int mr_timerfd_set(int fd, int64_t deadline_ns) {
    struct itimerspec setting = {{0, 0}, mr_timespec(deadline_ns)};
    return timerfd_settime(fd, TFD_TIMER_ABSTIME, &setting, NULL);
}

#else

#define MR_HAS_TIMERFD 0

static inline int mr_timerfd_create(void) {
    errno = ENOSYS;
    return -1;
}

static inline int mr_timerfd_set(int fd, int64_t deadline_ns) {
    (void)fd;
    (void)deadline_ns;
    errno = ENOSYS;
    return -1;
}

#endif

/* Blocks up to an absolute monotonic time. 0, or an error number (EINTR: a signal came first). */
static inline int mr_sleep_until(int64_t deadline_ns) {
#if MR_HAS_CLOCK_NANOSLEEP
    struct timespec deadline = mr_timespec(deadline_ns);
    return clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &deadline, NULL);
#else
    (void)deadline_ns;
    return ENOSYS;
#endif
}

#endif
