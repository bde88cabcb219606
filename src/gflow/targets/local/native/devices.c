/* Device isolation: a BPF program of a control group (version 2) decides which character devices its processes may
 * open. Programs of groups above it keep their effect: all must permit an access.
 *
 * Rules are lines `allow MAJOR MINOR` and `deny MAJOR MINOR`, MINOR `*` for all. The first rule that matches counts; a
 * device without a rule is permitted.
 */
#define _GNU_SOURCE
#include "shim.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/bpf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { MAX_RULES = 512, HEAD = 7, PER_RULE = 4, TAIL = 2 };

static struct bpf_insn load(int to, int offset) {
    return (struct bpf_insn){.code = BPF_LDX | BPF_MEM | BPF_W, .dst_reg = (unsigned char)to, .src_reg = 1,
                             .off = (short)offset};
}

static struct bpf_insn answer(int value) {
    return (struct bpf_insn){.code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = 0, .imm = value};
}

static struct bpf_insn skip_unless(int reg, int value, int count) {
    return (struct bpf_insn){.code = BPF_JMP | BPF_JNE | BPF_K, .dst_reg = (unsigned char)reg, .off = (short)count,
                             .imm = value};
}

static const struct bpf_insn END = {.code = BPF_JMP | BPF_EXIT};

/* Parse one line. `minor` -1: all. */
static bool parse_rule(const char *line, bool *allows, int *major, int *minor) {
    char word[8], last[16];
    if (sscanf(line, "%7s %d %15s", word, major, last) != 3) return false;
    *allows = !strcmp(word, "allow");
    if (!*allows && strcmp(word, "deny")) return false;
    *minor = strcmp(last, "*") ? atoi(last) : -1;
    return true;
}

/* Translate rules; the number of instructions, or 0 with errno. Registers: 2 kind of device, 3 major, 4 minor. */
static unsigned translate(const char *rules, struct bpf_insn *code) {
    unsigned count = 0;
    code[count++] = load(2, 0);
    code[count++] = load(3, 4);
    code[count++] = load(4, 8);
    code[count++] = (struct bpf_insn){.code = BPF_ALU | BPF_AND | BPF_K, .dst_reg = 2, .imm = 0xffff};
    code[count++] = answer(1);
    code[count++] = (struct bpf_insn){.code = BPF_JMP | BPF_JEQ | BPF_K, .dst_reg = 2, .off = 1,
                                      .imm = BPF_DEVCG_DEV_CHAR};
    code[count++] = END;
    int left = MAX_RULES;
    for (const char *line = rules; *line;) {
        bool allows;
        int major, minor;
        if (!left-- || !parse_rule(line, &allows, &major, &minor)) {
            errno = EINVAL;
            return 0;
        }
        code[count++] = skip_unless(3, major, minor < 0 ? 2 : 3);
        if (minor >= 0) code[count++] = skip_unless(4, minor, 2);
        code[count++] = answer(allows);
        code[count++] = END;
        line += strcspn(line, "\n");
        line += *line == '\n';
    }
    code[count++] = answer(1);
    code[count++] = END;
    return count;
}

static int call_bpf(int command, union bpf_attr *attributes) {
    return (int)syscall(SYS_bpf, command, attributes, sizeof *attributes);
}

static int load_program(const char *rules) {
    static struct bpf_insn code[HEAD + MAX_RULES * PER_RULE + TAIL];
    unsigned count = translate(rules, code);
    if (!count) return -1;
    union bpf_attr attributes = {.prog_type = BPF_PROG_TYPE_CGROUP_DEVICE, .insn_cnt = count};
    attributes.insns = (uint64_t)(uintptr_t)code;
    attributes.license = (uint64_t)(uintptr_t)"";
    return call_bpf(BPF_PROG_LOAD, &attributes);
}

static int change(int command, int group, int program) {
    union bpf_attr attributes = {.target_fd = (uint32_t)group, .attach_bpf_fd = (uint32_t)program,
                                 .attach_type = BPF_CGROUP_DEVICE};
    if (command == BPF_PROG_ATTACH) attributes.attach_flags = BPF_F_ALLOW_MULTI;
    return call_bpf(command, &attributes);
}

bool restrict_devices(int group, const char *rules, int *attached) {
    int program = *rules ? load_program(rules) : -1;
    if (*rules && (program < 0 || change(BPF_PROG_ATTACH, group, program))) {
        int error = errno;
        if (program >= 0) close(program);
        errno = error;
        return false;
    }
    /* The old one goes last: in between, both must permit an access. */
    if (*attached >= 0) {
        change(BPF_PROG_DETACH, group, *attached);
        close(*attached);
    }
    *attached = program;
    return true;
}

int restrict_group(const char *path, const char *rules) {
    int attached = -1, group = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (group >= 0 && restrict_devices(group, rules, &attached)) return 0;
    return errno;
}
