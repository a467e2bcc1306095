/* The system calls of thread_slice.pyx; where the system has none, both fail with ENOSYS. */
#ifndef MR_THREAD_SLICE_CALLS_H
#define MR_THREAD_SLICE_CALLS_H

#include <errno.h>
#include <stdint.h>
#include <string.h>
#ifdef __linux__
#include <sys/syscall.h>
#include <unistd.h>
#endif

#if defined(SYS_sched_getattr) && defined(SYS_sched_setattr)

/* As sched_setattr(2) has it; the C library has no name for it yet. */
struct mr_sched_attr {
    uint32_t size;
    uint32_t policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime_ns;
    uint64_t deadline_ns;
    uint64_t period_ns;
};

#define MR_SCHED_OTHER 0
#define MR_SCHED_BATCH 3
#define MR_RESET_ON_FORK 1

static inline int mr_get_attr(struct mr_sched_attr *attr) {
    memset(attr, 0, sizeof *attr);
    attr->size = sizeof *attr;
    return (int)syscall(SYS_sched_getattr, 0, attr, (unsigned)sizeof *attr, 0u);
}

/* Slice of the calling thread [ns], 0 where the kernel does not say or under another policy; -1 with errno. */
static inline int64_t mr_get_slice(void) {
    struct mr_sched_attr attr;
    if (mr_get_attr(&attr) != 0)
        return -1;
    if (attr.policy != MR_SCHED_OTHER && attr.policy != MR_SCHED_BATCH)
        return 0;
    return (int64_t)attr.runtime_ns;
}

/* Sets it, all else as it is; 0, or -1 with errno (EINVAL: another policy). */
static inline int mr_set_slice(int64_t slice_ns) {
    struct mr_sched_attr attr;
    if (mr_get_attr(&attr) != 0)
        return -1;
    if (attr.policy != MR_SCHED_OTHER && attr.policy != MR_SCHED_BATCH) {
        errno = EINVAL;
        return -1;
    }
    attr.flags &= MR_RESET_ON_FORK;
    attr.runtime_ns = (uint64_t)slice_ns;
    return (int)syscall(SYS_sched_setattr, 0, &attr, 0u);
}

#else

static inline int64_t mr_get_slice(void) {
    errno = ENOSYS;
    return -1;
}

static inline int mr_set_slice(int64_t slice_ns) {
    (void)slice_ns;
    errno = ENOSYS;
    return -1;
}

#endif

#endif
