/* The commands of gflow as a thin client: sends the words of the command line, and what the daemon must know about the
 * caller, to POST /command (see daemon/api/handlers/command.py), prints the answer and exits with its code. Whatever
 * the daemon does not serve, and everything without a daemon, is run by the Python client.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/ioctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

enum { LOOKED_UP = 16, MOST_ANSWER = 1 << 30, NO_LENGTH };
typedef struct {
    char *at;
    size_t size, room;
} Bytes;

static char **words;                                       /* without the program */
static int count;
static char bin[PATH_MAX], token[33];                      /* our folder; makes a retry idempotent */
static const char *program;
extern char **environ;

static _Noreturn void fail(const char *what)
{
    dprintf(2, "%s: %s\n", program, what);
    _exit(1);
}

static void add(Bytes *to, const void *bytes, size_t size)
{
    if (to->room - to->size <= size) {                     /* there is always room for a zero byte behind */
        to->room = 2 * (to->room + size) + 4096;
        if (!(to->at = realloc(to->at, to->room)))
            fail("out of memory");
    }
    memcpy(to->at + to->size, bytes, size);
    to->at[to->size += size] = 0;
}

static void add_field(Bytes *to, const char *text) { add(to, text, strlen(text) + 1); }

static void add_number(Bytes *to, long number)
{
    char text[24];
    snprintf(text, sizeof text, "%ld", number);
    add_field(to, text);
}

/* Become the Python client. `lost`: the token of a request whose answer was lost; "-": the daemon does not serve us.
 * As launcher.sh: if the package is beside us, without site and environment, by the interpreter beside us; where there is
 * none (pip install --user), by the one whose version the folder names, with site. Otherwise the package is editable.
 */
static _Noreturn void run_python(const char *lost)
{
    static char code[] = "import sys;s=sys.argv;sys.path.append(s.pop(1));from gflow.entry import main;"
                         "main(s.pop(1),s.pop(1))";
    static const char *const packages[] = {"site-packages", "dist-packages"};
    char python[PATH_MAX + 16], lib[PATH_MAX + 16], site[PATH_MAX + 300] = "", entry[PATH_MAX + 320];
    const char *version = "python3";
    snprintf(python, sizeof python, "%s/python3", bin);
    snprintf(lib, sizeof lib, "%s/../lib", bin);
    DIR *folder = opendir(lib);
    for (struct dirent *one; !*site && folder && (one = readdir(folder));)
        for (int at = 0; !*site && at < 2 && !strncmp(one->d_name, "python3", 7); at++) {
            snprintf(site, sizeof site, "%s/%s/%s", lib, one->d_name, packages[at]);
            snprintf(entry, sizeof entry, "%s/gflow/entry.py", site);
            *site = access(entry, R_OK) ? 0 : *site;
            version = *site ? one->d_name : version;
        }
    bool is_beside = !access(python, X_OK);
    const char *const start[] = {is_beside ? python : version, !*site ? "-P" : is_beside ? "-IS" : "-I",
                                 "-X", "utf8", "-c", code, *site ? site : bin, program, lost};
    const size_t length = sizeof start / sizeof *start;
    const char **argv = calloc(length + (size_t)count + 1, sizeof *argv);
    if (!argv)
        fail("out of memory");
    memcpy(argv, start, sizeof start);
    memcpy(argv + length, words, (size_t)count * sizeof *argv);
    execvp(argv[0], (char **)argv);
    dprintf(2, "%s: %s: %s\n", program, argv[0], strerror(errno));
    _exit(1);
}

static const char *variable(const char *name)
{
    const char *value = getenv(name);
    return value ? value : "";
}

/* ------------------------------------------------------------ the daemon's socket (as in hot_path.py) */

static void join(char path[PATH_MAX], const char *first, const char *second)
{
    if ((size_t)snprintf(path, PATH_MAX, "%s%s", first, second) >= PATH_MAX)
        run_python("-");
}

/* The socket of the user's own daemon: what the file `address` says, or the usual one if that is no absolute path. */
static void own_address(char path[PATH_MAX])
{
    static const char space[] = " \t\n\v\f\r";
    char data[PATH_MAX], file[PATH_MAX];
    const char *home = variable("HOME"), *xdg = variable("XDG_DATA_HOME"), *runtime = variable("XDG_RUNTIME_DIR");
    join(file, *xdg == '/' ? xdg : *home ? home : "/", *xdg == '/' ? "" : "/.local/share");
    join(data, file, "/gflow");
    join(file, data, "/address");
    int fd = open(file, O_RDONLY | O_CLOEXEC);
    ssize_t size = read(fd, file, sizeof file - 1);
    close(fd);
    file[size > 0 ? size : 0] = 0;
    char *text = file + strspn(file, space);
    for (size_t end = strlen(text); end && strchr(space, text[end - 1]);)
        text[--end] = 0;
    if (*text == '/')
        join(path, text, "");
    else
        join(path, *runtime ? runtime : data, *runtime ? "/gflow/gflowd.sock" : "/gflowd.sock");
}

/* A connection to the daemon, which is root's or ours unless the user named its socket. */
static int connect_daemon(void)
{
    char system[PATH_MAX], own[PATH_MAX];
    const char *chosen = variable("GFLOW_SOCKET");
    join(system, variable("GFLOW_SYSTEM_ROOT"), "/run/gflow/gflowd.sock");
    if (!*chosen)
        own_address(own);
    const char *path = *chosen ? chosen : !access(system, F_OK) ? system : own;
    bool is_named = *chosen || path == system;
    if (path == system && isatty(1) && !strcmp(program, "gqueue") && !access(own, F_OK))
        run_python("-");                                    /* it may point to jobs of the other daemon */
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    const char *name = strrchr(path, '/');
    size_t length = strlen(path);
    int folder = -1;
    if (length >= sizeof address.sun_path && name) {       /* a long path is reached through its folder */
        char parent[PATH_MAX];
        snprintf(parent, sizeof parent, "%.*s", (int)(name - path), path);
        folder = open(parent, O_PATH | O_CLOEXEC);
        length = (size_t)snprintf(address.sun_path, sizeof address.sun_path, "/proc/self/fd/%d%s", folder, name);
    } else if (length < sizeof address.sun_path)
        memcpy(address.sun_path, path, length);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (length >= sizeof address.sun_path || fd < 0 || connect(fd, (void *)&address, sizeof address))
        run_python("-");
    if (folder >= 0)
        close(folder);
    struct ucred peer;
    socklen_t size = sizeof peer;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) || (!is_named && peer.uid && peer.uid != geteuid()))
        run_python("-");
    return fd;
}

/* ------------------------------------------------------------ the request */

/* What a word names: 1 a file, 2 a program on the PATH, 4 an ELF executable. */
static int look_up(const char *word)
{
    struct stat found;
    char path[2 * PATH_MAX], magic[4] = "";
    int facts = !stat(word, &found) && !S_ISDIR(found.st_mode);
    if (strchr(word, '/')) {
        int fd = open(word, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
        if (fd >= 0 && read(fd, magic, 4) == 4 && !memcmp(magic, "\177ELF", 4))
            facts |= 4;
        close(fd);
        return facts;
    }
    for (const char *folder = variable("PATH");; folder++) {
        size_t length = strcspn(folder, ":");
        if ((size_t)snprintf(path, sizeof path, "%.*s/%s", (int)length, folder, word) < sizeof path &&
            !access(path, X_OK) && !stat(path, &found) && !S_ISDIR(found.st_mode))
            return facts | 2;
        if (!*(folder += length))
            return facts;
    }
}

/* The working folder: $PWD if it names it (it keeps links). */
static void add_folder(Bytes *to)
{
    char path[PATH_MAX];
    const char *shown = variable("PWD");
    struct stat mine, here;
    if (*shown == '/' && !stat(shown, &mine) && !stat(".", &here) && mine.st_dev == here.st_dev &&
        mine.st_ino == here.st_ino)
        add_field(to, shown);
    else if (getcwd(path, sizeof path))
        add_field(to, path);
    else
        run_python("-");
}

/* Columns of a terminal; -1: it is none. */
static int columns(int fd)
{
    struct winsize size = {0};
    return !isatty(fd) ? -1 : ioctl(fd, TIOCGWINSZ, &size) ? 0 : size.ws_col;
}

static Bytes describe_call(void)
{
    Bytes body = {0};
    mode_t mask = umask(077);
    umask(mask);
    add_field(&body, program);
    add_field(&body, token);
    add_folder(&body);
    add_number(&body, mask);
    add_number(&body, columns(1));
    add_number(&body, columns(2));
    add_number(&body, !*variable("NO_COLOR") && strcmp(variable("TERM"), "dumb"));
    bool submits = !strcmp(program, "gbatch");
    char facts[LOOKED_UP + 1] = "";
    for (int at = 0; submits && at < count && at < LOOKED_UP; at++)
        facts[at] = (char)('0' + (words[at][0] == '-' ? 0 : look_up(words[at])));
    add_field(&body, facts);
    add_number(&body, count);
    for (int at = 0; at < count; at++)
        add_field(&body, words[at]);
    for (char **one = environ; submits && *one; one++)
        add_field(&body, *one);
    return body;
}

/* ------------------------------------------------------------ the answer */

/* A number in the head of an answer. `otherwise`: it is not there; -1: what is there is no number. */
static long number(const char *head, const char *end, const char *name, long otherwise)
{
    const char *found = strstr(head, name);
    char *behind;
    if (!found || found >= end)
        return otherwise;
    found += strlen(name);
    unsigned long value = strtoul(found, &behind, 10);
    return *found >= '0' && *found <= '9' && *behind == '\r' && value <= MOST_ANSWER ? (long)value : -1;
}

/* How long an answer will be, by its head; 0: its head is not complete. Without a length it ends when the daemon closes
 * the connection, which it does after it has started the job.
 */
static size_t whole_size(const Bytes *answer)
{
    const char *content = memmem(answer->at, answer->size, "\r\n\r\n", 4);
    long length = content ? number(answer->at, content, "\r\ncontent-length: ", -1) : -1;
    return !content ? 0 : length < 0 ? SIZE_MAX : (size_t)(content + 4 - answer->at + length);
}

/* Send the request and receive the answer. */
static Bytes exchange(const Bytes *body)
{
    Bytes request = {0}, answer = {0};
    char piece[1 << 16];
    int length = snprintf(piece, sizeof piece,
                          "POST /command HTTP/1.1\r\nHost: gflow\r\nAccept: text/plain\r\nConnection: close\r\n"
                          "Content-Type: application/octet-stream\r\nContent-Length: %zu\r\n\r\n",
                          body->size);
    int fd = connect_daemon();
    add(&request, piece, (size_t)length);
    add(&request, body->at, body->size);
    for (size_t sent = 0; sent < request.size;) {
        ssize_t some = send(fd, request.at + sent, request.size - sent, MSG_NOSIGNAL);
        if (some < 0 && errno != EINTR)
            run_python(token);
        sent += some > 0 ? (size_t)some : 0;
    }
    size_t whole = 0;
    for (ssize_t size; (!whole || answer.size < whole) && (size = recv(fd, piece, sizeof piece, 0));) {
        if ((size < 0 && errno != EINTR) || answer.size > MOST_ANSWER)
            run_python(token);
        add(&answer, piece, size > 0 ? (size_t)size : 0);
        whole = whole ? whole : whole_size(&answer);
    }
    close(fd);
    free(request.at);
    return answer;
}

/* Join the chunks of a body in place. Returns its size; -1: a part is missing. */
static ssize_t join_chunks(char *body, size_t size)
{
    char *from = body, *to = body, *end = body + size, *line;
    while ((line = memmem(from, (size_t)(end - from), "\r\n", 2))) {
        size_t length = strtoul(from, NULL, 16), digits = strspn(from, "0123456789abcdefABCDEF");
        bool is_length = digits && from + digits == line;
        from = line + 2;
        if (!is_length || length > (size_t)(end - from))
            return -1;
        if (!length)
            return to - body;
        memmove(to, from, length);
        to += length;
        from += length;
        if (end - from < 2 || memcmp(from, "\r\n", 2))
            return -1;
        from += 2;
    }
    return -1;
}

static void print(int fd, const char *bytes, size_t size)
{
    signal(SIGPIPE, SIG_IGN);
    while (size) {
        ssize_t some = write(fd, bytes, size);
        if (some < 0 && errno == EPIPE)                    /* `gqueue | head`: the reader has closed the pipe */
            _exit(1);
        if (some < 0 && errno == EAGAIN)                   /* a pipe that does not block is full */
            poll(&(struct pollfd){.fd = fd, .events = POLLOUT}, 1, -1);
        else if (some < 0 && errno != EINTR)
            fail(strerror(errno));
        bytes += some > 0 ? some : 0;
        size -= some > 0 ? (size_t)some : 0;
    }
}

static void run_in_daemon(void)
{
    unsigned char random[16];
    if (getrandom(random, sizeof random, 0) != sizeof random)
        run_python("-");
    for (int at = 0; at < 16; at++)
        snprintf(token + 2 * at, 3, "%02x", random[at]);
    Bytes body = describe_call(), answer = exchange(&body);
    char *head = answer.at, *content = head ? memmem(head, answer.size, "\r\n\r\n", 4) : NULL;
    if (!content)
        run_python(token);
    if (strncmp(head, "HTTP/1.1 200 ", 13)) {
        bool is_undone = !strncmp(head, "HTTP/1.1 204 ", 13) || !strncmp(head, "HTTP/1.1 4", 10);
        run_python(is_undone || strcmp(program, "gbatch") ? "-" : token);
    }
    long length = number(head, content, "\r\ncontent-length: ", NO_LENGTH);
    long code = number(head, content, "\r\nx-gflow-exit: ", 0), errors = number(head, content, "\r\nx-gflow-stderr: ", 0);
    content += 4;
    ssize_t size = head + answer.size - content;
    size = length == NO_LENGTH ? join_chunks(content, (size_t)size) : length > size ? -1 : length;
    if (size < 0 || errors < 0 || errors > size || code < 0)
        run_python(token);
    print(2, content, (size_t)errors);
    print(1, content + errors, (size_t)(size - errors));
    _exit((int)code & 255);
}

int main(int argc, char **argv)
{
    program = argc ? argv[0] : "gflow";
    if (!realpath((const char *)getauxval(AT_EXECFN), bin)) /* not /proc/self/exe: /proc may not be mounted */
        fail(strerror(errno));
    char *name = strrchr(bin, '/');
    *name = 0;
    program = name + 1;
    words = argv + (argc > 0);
    count = argc > 1 ? argc - 1 : 0;
    static const char *const served[] = {"gbatch", "gqueue", "ginfo", "gjob", "gcancel"};
    for (size_t at = 0; at < sizeof served / sizeof *served; at++)
        if (!strcmp(program, served[at]))
            run_in_daemon();
    run_python("-");
}
