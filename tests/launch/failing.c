/* Preloaded: calls of the system that write ask libfiu whether to fail. Its own fiu_posix_preload.so (1.1) exports names
   such as hash_free, which crashes pyarrow. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/uio.h>
#include <unistd.h>

int fiu_init(unsigned int flags);
int fiu_fail(const char *name);
void *fiu_failinfo(void);

static int ready;
__attribute__((constructor)) static void begin(void) { ready = fiu_init(0) == 0; }

#define MAY_FAIL(type, name, parameters, arguments)              \
    type name parameters {                                       \
        static type(*real) parameters;                           \
        if (ready && fiu_fail(#name)) {                          \
            errno = (int)(intptr_t)fiu_failinfo();               \
            return -1;                                           \
        }                                                        \
        if (!real) real = (type(*) parameters)dlsym(RTLD_NEXT, #name); \
        return real arguments;                                   \
    }

MAY_FAIL(ssize_t, write, (int file, const void *from, size_t count), (file, from, count))
MAY_FAIL(ssize_t, pwrite, (int file, const void *from, size_t count, off_t at), (file, from, count, at))
MAY_FAIL(ssize_t, writev, (int file, const struct iovec *from, int count), (file, from, count))
MAY_FAIL(int, fsync, (int file), (file))
MAY_FAIL(int, rename, (const char *from, const char *to), (from, to))
