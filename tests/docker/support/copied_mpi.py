"""OpenMPI of this machine in a folder, for containers whose image has none."""

import re
import shutil
import subprocess
from pathlib import Path

_BIN = Path("/usr/bin")
#: The image's own libraries: those that its programs have loaded already.
_OWN = re.compile(r"/(?:libc|libm|libdl|libpthread|ld-linux[^/]*)\.so")


def copied_mpi(folder: Path) -> Path:
    """Copy OpenMPI below the folder. Return the script that sets the variables for it."""
    lib = next(Path("/usr/lib").glob("*/libmpi.so.40"))
    to = folder / "lib" / lib.parent.name
    plugins = to / "openmpi" / "lib" / "openmpi3"
    shutil.copytree(lib.parent / "openmpi" / "lib" / "openmpi3", plugins)
    shutil.copytree("/usr/share/openmpi", folder / "share" / "openmpi")
    (folder / "bin").mkdir()
    for name, program in (("mpirun", "orterun"), ("orted", "orted")):
        shutil.copy(_BIN / program, folder / "bin" / name)
    needed = subprocess.run(
        ["ldd", str(_BIN / "orterun"), str(lib), *map(str, plugins.glob("*.so"))],
        capture_output=True,
        text=True,
        check=False,
    ).stdout
    for path in {str(lib), *re.findall(r"=> (/\S+)", needed)}:
        if not _OWN.search(path):
            shutil.copy(path, to)
    variables, daemon = folder / "variables", folder / "bin" / "daemon"
    variables.write_text(
        f"export OPAL_PREFIX={folder} PATH={folder}/bin:$PATH LD_LIBRARY_PATH={to}\n"
        f"export OMPI_MCA_mca_base_component_path={plugins} OMPI_MCA_orte_launch_agent={daemon}\n"
        "export OMPI_MCA_btl=tcp,self OMPI_MCA_pml=ob1\n"
    )
    daemon.write_text(f'#!/bin/sh\n. {variables}\nexec orted "$@"\n')
    daemon.chmod(0o755)
    return variables
