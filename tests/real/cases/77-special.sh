# Who may open what is no regular file (the kernel opens it, not the file system), watch it, or execute it; what a write and an
# ACL take from a mode; touching what may only be appended to; what is removed while it is open; file handles.
if [ "$(id -u)" != 0 ]; then echo "  needs two users: root only"; return 0; fi
D=$MNT/special
mkdir "$D" && chmod 755 "$MNT" "$D"
cat > "$WORK/special.py" <<'PY'
import ctypes, errno, fcntl, os, shutil, socket, stat, struct, subprocess, sys

D = sys.argv[1]
libc = ctypes.CDLL(None, use_errno=True)
bad = []
def path(name): return os.path.join(D, name)
def says(f):
    try: f()
    except OSError as e: return errno.errorcode[e.errno]
    return "ok"
def asuser(uid, f, gid=None, groups=()):
    "Runs f as another user in a child; what it says."
    r, w = os.pipe()
    if os.fork() == 0:
        try:
            os.setgroups(list(groups)); os.setgid(gid if gid is not None else uid); os.setuid(uid)
            out = says(f)
        except BaseException as e: out = repr(e)
        os.write(w, out.encode()); os._exit(0)
    os.close(w); out = os.read(r, 1000).decode(); os.close(r); os.wait()
    return out
def want(what, got, expected):
    if got != expected: bad.append(f"{what}: {got}, not {expected}")
def openat(name, flags): return lambda: os.close(os.open(path(name), flags | os.O_NONBLOCK))
def watch(name):
    def f():
        fd = libc.inotify_init()
        if libc.inotify_add_watch(fd, path(name).encode(), 2) < 0: raise OSError(ctypes.get_errno(), "")
    return f
def connect(name):
    s = socket.socket(socket.AF_UNIX); s.connect(path(name)); s.close()

# pipes, devices, sockets, watches: by mode, by group, by ACL, and right after a change
os.mkfifo(path("fifo"), 0o600)
for n, kind, dev in (("zero", stat.S_IFCHR, (1, 5)), ("null", stat.S_IFCHR, (1, 3)), ("loop", stat.S_IFBLK, (7, 0))):
    os.mknod(path(n), kind | 0o600, os.makedev(*dev))
server = socket.socket(socket.AF_UNIX); os.chdir(D); server.bind("sock"); server.listen(9); os.chdir("/")
os.chmod(path("sock"), 0o600)
open(path("secret"), "w").close(); os.chmod(path("secret"), 0o600); os.mkdir(path("closed"), 0o700)
U = 4242
for n in ("fifo", "zero", "null", "loop"):
    want(f"another user reads {n} 0600", asuser(U, openat(n, os.O_RDONLY)), "EACCES")
    want(f"another user writes {n} 0600", asuser(U, openat(n, os.O_RDWR)), "EACCES")
want("root reads zero", says(openat("zero", os.O_RDONLY)), "ok")
want("another user connects", asuser(U, lambda: connect("sock")), "EACCES")
want("root connects", says(lambda: connect("sock")), "ok")
for n in ("secret", "closed", "fifo"):
    want(f"another user watches {n}", asuser(U, watch(n)), "EACCES")
    want(f"root watches {n}", says(watch(n)), "ok")
for mode, r, w in ((0o604, "ok", "EACCES"), (0o602, "EACCES", "EACCES"), (0o606, "ok", "ok"), (0o600, "EACCES", "EACCES")):
    for n in ("fifo", "zero"):
        os.chmod(path(n), mode)
        want(f"{n} {mode:o} read", asuser(U, openat(n, os.O_RDONLY)), r)
        want(f"{n} {mode:o} read and written", asuser(U, openat(n, os.O_RDWR)), w)
os.chmod(path("sock"), 0o606); want("sock 0606", asuser(U, lambda: connect("sock")), "ok")
os.chown(path("fifo"), 0, 777); os.chmod(path("fifo"), 0o660)
want("fifo of a supplementary group", asuser(U, openat("fifo", os.O_RDWR), groups=(1, 2, 3, 777)), "ok")
want("fifo of another group", asuser(U, openat("fifo", os.O_RDWR), groups=(1, 2, 3, 778)), "EACCES")
if subprocess.run(["setfacl", "-m", f"u:{U}:rw", path("null")]).returncode == 0:
    want("null by its ACL", asuser(U, openat("null", os.O_RDWR)), "ok")
    want("null not by somebody else's", asuser(U + 1, openat("null", os.O_RDWR)), "EACCES")
    subprocess.run(["setfacl", "-b", path("null")])
    want("null without its ACL", asuser(U, openat("null", os.O_RDWR)), "EACCES")
    os.mknod(path("s"), stat.S_IFREG | 0o755); os.chown(path("s"), U, U + 1); os.chmod(path("s"), 0o2755)
    def mode(n): return f"{os.stat(path(n)).st_mode & 0o7777:o}"
    def setfacl(spec): return lambda: subprocess.run(["setfacl", "-m", spec, path("s")], check=True)
    want("setfacl by the owner", asuser(U, setfacl("u:1:r,m::r")), "ok")
    want("the mode after setfacl by an owner outside the group", mode("s"), "745")
    os.chmod(path("s"), 0o2755); want("setfacl in the group", asuser(U, setfacl("g::r,m::rwx"), gid=U + 1), "ok")
    want("the mode after setfacl inside the group", mode("s"), "2775")

# executing
subprocess.run(["cp", shutil.which("true"), path("prog")], check=True)
def run(name): return lambda: subprocess.run([path(name)], check=True)
for m, who, expected in ((0o711, U, "ok"), (0o744, U, "EACCES"), (0o100, U, "EACCES"), (0o755, U, "ok")):
    os.chmod(path("prog"), m); want(f"prog {m:o}", asuser(who, run("prog")), expected)
os.chmod(path("prog"), 0o711); want("prog 711 read", asuser(U, openat("prog", os.O_RDONLY)), "EACCES")
subprocess.run(["cp", path("prog"), path("prog2")], check=True); os.chmod(path("prog2"), 0o755)
data = open(path("prog2"), "rb").read(); fd = os.open(path("prog2"), os.O_RDONLY | os.O_TRUNC)
w = os.open(path("prog2"), os.O_WRONLY); os.write(w, data); os.close(w)
want("executed beside a descriptor that cut it", says(run("prog2")), "ok"); os.close(fd)

# what a descriptor allows stays allowed; what a write takes
def cut_as_other():
    fd = os.open(path("secret"), os.O_RDWR)
    def f(): os.ftruncate(fd, 5)
    return asuser(U, f)
want("ftruncate after the uid was dropped", cut_as_other(), "ok"); want("its size", os.stat(path("secret")).st_size, 5)
open(path("su"), "w").close(); os.chmod(path("su"), 0o6777)
want("a write", asuser(U, lambda: os.write(os.open(path("su"), os.O_WRONLY), b"x")), "ok")
want("the mode after a stranger's write", f"{os.stat(path('su')).st_mode & 0o7777:o}", "777")
cap = struct.pack("<5I", 0x02000001, 0x400, 0, 0, 0)
os.chown(path("su"), U, U); os.setxattr(path("su"), "security.capability", cap)
asuser(U, lambda: os.write(os.open(path("su"), os.O_WRONLY), b"x"))
want("capabilities after the owner's write", says(lambda: os.getxattr(path("su"), "security.capability")), "ENODATA")
os.setxattr(path("su"), "security.capability", cap); os.truncate(path("su"), 0)
want("capabilities after a cut", says(lambda: os.getxattr(path("su"), "security.capability")), "ENODATA")
os.setxattr(path("su"), "security.capability", cap); os.chown(path("su"), 1, 1)
want("capabilities after a chown", says(lambda: os.getxattr(path("su"), "security.capability")), "ENODATA")

# flags
fd = os.open(path("log"), os.O_CREAT | os.O_RDWR, 0o666)
os.utime(path("log"), (1, 1)); before = os.stat(path("log")).st_ctime_ns
flags = lambda f: fcntl.ioctl(fd, 0x40086602, struct.pack("l", f))
if says(lambda: flags(0x20)) == "ok":
    want("chattr moves ctime", os.stat(path("log")).st_ctime_ns > before, True)
    want("touch of what may be appended to", says(lambda: os.utime(path("log"))), "ok")
    want("touched", os.stat(path("log")).st_mtime > 1, True)
    want("chosen times of it", says(lambda: os.utime(path("log"), (1, 1))), "EPERM")
    want("chmod of it", says(lambda: os.chmod(path("log"), 0o600)), "EPERM")
    want("cut", says(lambda: os.truncate(path("log"), 0)), "EPERM")
    flags(0x10); want("touch of what is immutable", says(lambda: os.utime(path("log"))), "EPERM")
    flags(0)
os.close(fd)

# removed while open
for how in ("rmdir", "rename"):
    os.mkdir(path("d"), 0o751); d = os.open(path("d"), os.O_RDONLY); os.mkdir(path("e"))
    here = os.open(".", os.O_RDONLY); os.chdir(path("d"))
    if how == "rmdir": os.rmdir(path("d")); os.rmdir(path("e"))
    else: os.rename(path("e"), path("d"))
    want(f"fstat after {how}", says(lambda: os.fstat(d)), "ok")
    if says(lambda: os.fstat(d)) == "ok": want(f"nlink and mode after {how}", (os.fstat(d).st_nlink, oct(os.fstat(d).st_mode)), (0, "0o40751"))
    want(f"stat of the working directory after {how}", says(lambda: os.stat(".")), "ok")
    want(f"fchmod after {how}", says(lambda: os.fchmod(d, 0o700)), "ok")
    if how == "rmdir": want("the mode then", oct(os.fstat(d).st_mode), "0o40700")
    os.fchdir(here); os.close(here); os.close(d)
    if how == "rename": os.rmdir(path("d"))
p = os.open(path("fifo"), os.O_RDWR); os.unlink(path("fifo")); want("fstat of a removed pipe", says(lambda: os.fstat(p)), "ok"); os.close(p)

# file handles, also of files that the kernel has forgotten
class Handle(ctypes.Structure): _fields_ = [("bytes", ctypes.c_uint), ("type", ctypes.c_int), ("data", ctypes.c_char * 128)]
def handle(name):
    h, m = Handle(bytes=128), ctypes.c_int()
    if libc.name_to_handle_at(-100, path(name).encode(), ctypes.byref(h), ctypes.byref(m), 0) < 0: raise OSError(ctypes.get_errno(), "name_to_handle_at")
    return h
def reopen(h, flags=os.O_RDONLY):
    m = os.open(D, os.O_RDONLY)
    try:
        fd = libc.open_by_handle_at(m, ctypes.byref(h), flags)
        if fd < 0: raise OSError(ctypes.get_errno(), "open_by_handle_at")
        return fd
    finally: os.close(m)
os.makedirs(path("deep/er"), exist_ok=True)
with open(path("deep/er/f"), "w") as f: f.write("by handle")
f, d, gone = handle("deep/er/f"), handle("deep/er"), handle("prog2")
os.unlink(path("prog2"))
os.rename(path("deep/er/f"), path("deep/g"))
try:
    with open("/proc/sys/vm/drop_caches", "w") as c: c.write("2")
except OSError: pass
want("a file by its handle", says(lambda: want("its content", os.read(reopen(f), 100), b"by handle")), "ok")
want("a directory by its handle", says(lambda: want("its listing", os.listdir(reopen(d)), [])), "ok")
want("a removed file by its handle", says(lambda: reopen(gone)), "ESTALE")
for b in bad: print("  " + b)
sys.exit(bool(bad))
PY
python3 "$WORK/special.py" "$D" || fail "special files, executing, writing, handles"
rm -rf "$D"
