"""Control groups of a container, planted below a folder."""

from serving_study.hardware import cgroups

GIB = cgroups.GIB
V2_MOUNT = "31 23 0:28 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup rw\n"


def plant(root, files):
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"{text}\n")
    return root


def v2(root, *, cpu="max 100000", memory="max", used=0, inactive=0, path="/", mount=V2_MOUNT):
    folder = f"sys/fs/cgroup{path.rstrip('/')}"
    return plant(
        root,
        {
            "proc/self/cgroup": f"0::{path}",
            "proc/self/mountinfo": mount,
            f"{folder}/cpu.max": cpu,
            f"{folder}/memory.max": memory,
            f"{folder}/memory.current": used,
            f"{folder}/memory.stat": f"anon 5\nfile 7\ninactive_file {inactive}\nactive_file 3",
        },
    )
