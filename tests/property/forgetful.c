/* Records what a process does to the files below LOOM_FORGET_ROOT, in order, for a test that replays any prefix of
 * it as a disk would have it after the power went: with what was synced, and an arbitrary part of the rest.
 *
 *   gcc -shared -fPIC -O1 -o forgetful.so forgetful.c -ldl
 *
 * One record per call: a letter, the lengths of two fields, the fields. Nothing is refused or changed.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static int out = -1;
static char root[4096];
static size_t root_length;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

__attribute__((constructor)) static void begin(void)
{
    const char *where = getenv("LOOM_FORGET_ROOT"), *log = getenv("LOOM_FORGET_LOG");
    if (!where || !log)
        return;
    snprintf(root, sizeof root, "%s/", where);
    root_length = strlen(root);
    out = (int)syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
}

/* The part of a path below the root; NULL if it lies elsewhere. "" is the root itself. */
static const char *below(const char *path)
{
    if (out < 0 || !path)
        return NULL;
    if (!strncmp(path, root, root_length))
        return path + root_length;
    return strlen(path) == root_length - 1 && !strncmp(path, root, root_length - 1) ? "" : NULL;
}

static void put(const void *data, size_t size)
{
    const char *at = data;
    while (size) {
        long written = syscall(SYS_write, out, at, size);
        if (written <= 0)
            abort();
        at += written;
        size -= (size_t)written;
    }
}

static void record(char kind, const void *a, size_t a_size, const void *b, size_t b_size)
{
    char head[64];
    int length = snprintf(head, sizeof head, "%c %zu %zu\n", kind, a_size, b_size);
    put(head, (size_t)length);
    put(a, a_size);
    put(b, b_size);
}

static int of_root(int descriptor, char *path, size_t size)
{
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = readlink(link, path, size - 1);
    if (length < 0)
        return 0;
    path[length] = 0;
    return below(path) != NULL;
}

static int inode(int descriptor, char *text)
{
    struct stat facts;
    if (syscall(SYS_fstat, descriptor, &facts))
        return 0;
    return sprintf(text, "%lu", (unsigned long)facts.st_ino);
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static int opened(int descriptor, const char *path, int flags)
{
    const char *name = below(path);
    if (descriptor >= 0 && name && (flags & O_CREAT)) {
        char number[32];
        int length = inode(descriptor, number);
        record(flags & O_EXCL ? 'c' : 'o', name, strlen(name), number, (size_t)length);
    }
    return descriptor;
}

#define OPEN(name)                                                                                                   \
    int name(const char *path, int flags, ...)                                                                       \
    {                                                                                                                \
        va_list more;                                                                                                \
        va_start(more, flags);                                                                                       \
        int mode = va_arg(more, int);                                                                                \
        va_end(more);                                                                                                \
        if (!below(path))                                                                                            \
            return REAL(name)(path, flags, mode);                                                                    \
        pthread_mutex_lock(&lock);                                                                                   \
        int descriptor = opened(REAL(name)(path, flags, mode), path, flags);                                         \
        pthread_mutex_unlock(&lock);                                                                                 \
        return descriptor;                                                                                           \
    }
OPEN(open)
OPEN(open64)

ssize_t write(int descriptor, const void *data, size_t size)
{
    char path[4096], number[32];
    if (out < 0 || !of_root(descriptor, path, sizeof path))
        return syscall(SYS_write, descriptor, data, size);
    pthread_mutex_lock(&lock);
    ssize_t written = syscall(SYS_write, descriptor, data, size);
    if (written > 0)
        record('w', number, (size_t)inode(descriptor, number), data, (size_t)written);
    pthread_mutex_unlock(&lock);
    return written;
}

int fsync(int descriptor)
{
    char path[4096], number[32];
    int result = REAL(fsync)(descriptor);
    if (out >= 0 && !result && of_root(descriptor, path, sizeof path)) {
        struct stat facts;
        pthread_mutex_lock(&lock);
        if (!fstat(descriptor, &facts) && S_ISDIR(facts.st_mode))
            record('d', below(path), strlen(below(path)), "", 0);
        else
            record('f', number, (size_t)inode(descriptor, number), "", 0);
        pthread_mutex_unlock(&lock);
    }
    return result;
}

#define ONE(name, kind)                                                                                              \
    {                                                                                                                \
        if (!below(path))                                                                                            \
            return REAL(name)(path ARGUMENT);                                                                        \
        pthread_mutex_lock(&lock);                                                                                   \
        int result = REAL(name)(path ARGUMENT);                                                                      \
        if (!result)                                                                                                 \
            record(kind, below(path), strlen(below(path)), "", 0);                                                   \
        pthread_mutex_unlock(&lock);                                                                                 \
        return result;                                                                                               \
    }
#define ARGUMENT , mode
int mkdir(const char *path, mode_t mode) ONE(mkdir, 'm')
#undef ARGUMENT
#define ARGUMENT
int unlink(const char *path) ONE(unlink, 'u')
int rmdir(const char *path) ONE(rmdir, 'x')

#define TWO(name, kind)                                                                                              \
    int name(const char *from, const char *to)                                                                       \
    {                                                                                                                \
        if (!below(from) || !below(to))                                                                              \
            return REAL(name)(from, to);                                                                             \
        pthread_mutex_lock(&lock);                                                                                   \
        int result = REAL(name)(from, to);                                                                           \
        if (!result)                                                                                                 \
            record(kind, below(from), strlen(below(from)), below(to), strlen(below(to)));                            \
        pthread_mutex_unlock(&lock);                                                                                 \
        return result;                                                                                               \
    }
TWO(rename, 'r')
TWO(link, 'l')

/* How the test's process says in the record that something was acknowledged to it. */
int access(const char *path, int mode)
{
    if (out >= 0 && !strncmp(path, "/acknowledged/", 14)) {
        pthread_mutex_lock(&lock);
        record('a', path + 14, strlen(path + 14), "", 0);
        pthread_mutex_unlock(&lock);
    }
    return REAL(access)(path, mode);
}
