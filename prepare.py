"""Set up everything Weir needs below .venv and the jar cache. Runs on a bare Python, so it only uses the standard library.

What is missing on the machine is said in one line with what to do.
"""

import os
import re
import shutil
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
VENV = os.path.join(HERE, ".venv")
PYTHON = os.path.join(VENV, "bin", "python")
READY = os.path.join(VENV, ".ready")
UV = "uv==0.13.7"
NEEDED_GIGABYTES = 4


def refuse(line):
    sys.stderr.write("weir: " + line + "\n")
    sys.exit(2)


def use_new_enough_python():
    """Go on under a Python of at least 3.11: this one, or one beside it that runs."""
    if sys.version_info >= (3, 11):
        return
    for name in ("python3.13", "python3.12", "python3.11"):
        path = shutil.which(name)
        if path and subprocess.call([path, "-c", ""], stderr=subprocess.DEVNULL) == 0:
            os.execv(path, [path, os.path.abspath(__file__)])
    refuse("Python 3.11 or newer is needed and this is %d.%d: install one (Debian: apt-get install python3.11)" % sys.version_info[:2])


def check_java():
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")
    what_to_do = "install one (Debian: apt-get install openjdk-17-jre-headless) or set JAVA_HOME"
    if not java or not os.path.exists(java):
        refuse("Java 17 or 21 is needed and none was found: " + what_to_do)
    said = subprocess.run([java, "-version"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True).stdout
    found = re.search(r'version "(\d+)', said)
    if not found or found.group(1) not in ("17", "21"):
        refuse("Java 17 or 21 is needed and %s is %s: %s" % (java, found.group(1) if found else "unreadable", what_to_do))


def check_disk():
    free = shutil.disk_usage(HERE).free / 1e9
    if free < NEEDED_GIGABYTES:
        refuse("%d GB of free disk are needed and %s has %.1f: make room" % (NEEDED_GIGABYTES, HERE, free))


def run(what, command):
    print("weir: " + what, flush=True)
    if subprocess.call(command, cwd=HERE) != 0:
        refuse(what + " failed: see the lines above; is a package registry within reach?")


def install():
    if not os.path.exists(PYTHON):
        print("weir: making .venv", flush=True)
        if subprocess.call([sys.executable, "-m", "venv", VENV]) != 0:
            refuse("this Python cannot make a virtual environment: install its venv module (Debian: apt-get install python3-venv)")
    uv = [PYTHON, "-m", "uv", "pip", "install", "--quiet", "--compile-bytecode", "--python", PYTHON]
    run("installing the installer", [PYTHON, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", UV])
    run("installing the packages of requirements.lock (about a minute)", uv + ["--require-hashes", "-r", "requirements.lock"])
    run("installing weir", uv + ["--no-deps", "-e", "."])
    run("fetching the jars of ivy.xml (about a minute, once)", [PYTHON, "-m", "weir.cli", "jars"])
    with open(READY, "w"):
        pass


if __name__ == "__main__":
    use_new_enough_python()
    check_java()
    check_disk()
    install()
