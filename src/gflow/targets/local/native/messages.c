/* Messages between daemon and shim: a length, then fields, each a length and bytes. */
#include "shim.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { LENGTH = 4 };

static uint32_t length_at(const char *bytes) {
    const unsigned char *b = (const unsigned char *)bytes;
    return b[0] | b[1] << 8 | b[2] << 16 | (uint32_t)b[3] << 24;
}

static void put_length(char *bytes, uint32_t length) {
    for (int i = 0; i < LENGTH; i++) bytes[i] = (char)(length >> 8 * i);
}

size_t message_size(const Buffer *buffer) {
    if (buffer->size < LENGTH) return 0;
    size_t size = LENGTH + (size_t)length_at(buffer->bytes);
    return buffer->size >= size ? size : 0;
}

/* Split `bytes` into fields, in place. The terminator of a field overwrites the length of the next one. */
bool read_message(char *bytes, size_t size, Message *message) {
    size_t at = LENGTH;
    message->count = 0;
    while (at + LENGTH <= size && message->count < FIELDS) {
        uint32_t length = length_at(bytes + at);
        bytes[at] = '\0';
        at += LENGTH;
        if (length > size - at) return false;
        message->field[message->count++] = (Text){bytes + at, length};
        at += length;
    }
    bytes[size] = '\0';                                   /* append() reserves one more byte */
    return at == size && message->count > 0;
}

void append(Buffer *buffer, const void *bytes, size_t size) {
    if (buffer->size + size + 1 > buffer->room) {
        buffer->room = 2 * (buffer->size + size + 1);
        buffer->bytes = realloc(buffer->bytes, buffer->room);
        if (!buffer->bytes) abort();
    }
    memcpy(buffer->bytes + buffer->size, bytes, size);
    buffer->size += size;
}

void drop(Buffer *buffer, size_t size) {
    memmove(buffer->bytes, buffer->bytes + size, buffer->size - size);
    buffer->size -= size;
}

bool is_kind(const Message *message, const char *kind) {
    return strcmp(message->field[KIND].at, kind) == 0;
}

long number(const Message *message, enum Field field) {
    return strtol(message->field[field].at, NULL, 10);
}

bool send_all(int fd, const void *bytes, size_t size) {
    for (const char *at = bytes; size;) {
        ssize_t sent = write(fd, at, size);
        if (sent < 0 && errno == EINTR) continue;
        if (sent < 0) return false;
        at += sent;
        size -= (size_t)sent;
    }
    return true;
}

bool send_words(int fd, int count, const char *const *words) {
    char bytes[8192];
    size_t at = LENGTH;
    for (int i = 0; i < count; i++) {
        size_t length = strlen(words[i]);
        if (at + LENGTH + length > sizeof bytes) return false;
        put_length(bytes + at, (uint32_t)length);
        memcpy(bytes + at + LENGTH, words[i], length);
        at += LENGTH + length;
    }
    put_length(bytes, (uint32_t)(at - LENGTH));
    return send_all(fd, bytes, at);
}
