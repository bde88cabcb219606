"""gflow top: time to the first frame, and the CPU time while it is open, with 100 running jobs.

    .venv/bin/python -m benchmarks.top_view
"""
import fcntl, os, pty, select, statistics, struct, subprocess, sys, tempfile, termios, time
from pathlib import Path

BIN = Path(sys.executable).parent
JOBS, TRIALS, OPEN_S = 100, 7, 30
TICKS = os.sysconf("SC_CLK_TCK")


class Top:
    def __init__(self, env, columns=200, lines=50):
        self.began = time.perf_counter()
        self.pid, self.fd = pty.fork()
        if not self.pid:
            os.execve(BIN / "gflow", ["gflow", "top"], env | {"TERM": "xterm-256color"})
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("4H", lines, columns, 0, 0))
        self.data = b""

    def read(self, until, word):
        while time.perf_counter() < until and word not in self.data:
            if select.select([self.fd], [], [], 0.01)[0]:
                self.data += os.read(self.fd, 65536)
        return time.perf_counter() - self.began

    def cpu_s(self):
        fields = Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def close(self):
        os.kill(self.pid, 9)
        os.waitpid(self.pid, 0)
        os.close(self.fd)


def main():
    with tempfile.TemporaryDirectory() as home:
        env = {"HOME": home, "PATH": f"{BIN}:/usr/bin:/bin", "LANG": "C.UTF-8"}
        call = lambda *words: subprocess.run([BIN / words[0], *words[1:]], env=env, cwd=home, check=True, capture_output=True)
        call("gflowd", "up", "--simulate-gpus", f"{JOBS}x80G", "--cpus", str(2 * JOBS))
        try:
            for at in range(JOBS):  # single jobs: an array would be one row
                call("gbatch", "--gpus", "1", "--name", f"job{at}", "sleep", "3600")
            first = []
            for _ in range(TRIALS):
                top = Top(env)
                first.append(top.read(time.perf_counter() + 10, b"keys"))
                top.close()
            top = Top(env)
            top.read(time.perf_counter() + 5, b"\0")
            before = top.cpu_s()
            top.read(time.perf_counter() + OPEN_S, b"\0")
            spent = top.cpu_s() - before
            top.close()
        finally:
            call("gflowd", "down", "--kill-jobs")
    print(f"first frame: median {statistics.median(first):.2f} s, best {min(first):.2f} s of {TRIALS}")
    print(f"open with {JOBS} running jobs: {spent / OPEN_S:.1%} of a core")


if __name__ == "__main__":
    main()
