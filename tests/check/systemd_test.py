#!/usr/bin/env python3
"""Checks deploy/systemd with systemd's own programs, none of which needs a running systemd.

usage: systemd_test.py ROOT KVISTD     ROOT: the project; KVISTD: a built kvistd
"""

import grp
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(sys.argv.pop(1))
KVISTD = sys.argv.pop(1)
SYSTEMD = ROOT / "deploy/systemd"
UNITS = ["kvistd.service", "kvistd-gpu.service"]
ALL_UNITS = [*UNITS, "kvist-controller.service"]
EXPOSURE_MAX = 20  # tenths


def run(*command, **options):
    return subprocess.run([str(word) for word in command], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options)


def settings(unit):
    lines = (SYSTEMD / unit).read_text().splitlines()
    return [line for line in lines if line and not line.startswith(("#", "["))]


def install(root, unit, drop_in=None):
    """A root that holds nothing but the unit, its drop-in and, for `verify` wants them to be there, the programs."""
    for program in ["usr/sbin/kvistd", "usr/sbin/kvist-controller", "usr/bin/kvistctl"]:
        path = pathlib.Path(root, program)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("#!/bin/sh\n")
        path.chmod(0o755)
    units = pathlib.Path(root, "etc/systemd/system")
    units.mkdir(parents=True)
    (units / unit).write_text((SYSTEMD / unit).read_text())
    if drop_in is not None:
        (units / f"{unit}.d").mkdir()
        (units / f"{unit}.d" / drop_in.name.removesuffix(".example")).write_text(drop_in.read_text())


def not_understood(root, unit):
    done = run("systemd-analyze", "verify", "--man=no", f"--root={root}", unit)
    wrong = [line for line in done.stdout.splitlines() if unit in line or "nknown" in line]
    return [line for line in wrong if "not found" not in line]  # sysinit.target and the like, in this empty root


def drop_ins():
    """Each example, and every unit that may have it."""
    for example in sorted(SYSTEMD.glob("*.service.d/*.conf.example")):
        owner = example.parent.name.removesuffix(".d")
        for unit in UNITS if owner == UNITS[0] else [owner]:
            yield unit, example


class Units(unittest.TestCase):
    def test_exposure_is_low(self):
        for unit in ALL_UNITS:
            done = run("systemd-analyze", "security", "--offline=true", "--no-pager", f"--threshold={EXPOSURE_MAX}", SYSTEMD / unit)
            print(done.stdout.splitlines()[-1])
            self.assertEqual(done.returncode, 0, done.stdout)
            worse = run("systemd-analyze", "security", "--offline=true", "--no-pager", "--threshold=5", SYSTEMD / unit)
            self.assertNotEqual(worse.returncode, 0, "the threshold isn't looked at")

    def test_every_line_is_understood(self):
        for unit in ALL_UNITS:
            with tempfile.TemporaryDirectory() as root:
                install(root, unit)
                self.assertEqual(not_understood(root, unit), [])

    def test_one_ends_before_the_other_begins(self):
        after = [word for line in settings(UNITS[1]) if line.startswith("After=") for word in line.removeprefix("After=").split()]
        self.assertIn(UNITS[0], after)

    def test_the_two_differ_in_what_a_driver_needs_only(self):
        cpu, gpu = set(settings(UNITS[0])), set(settings(UNITS[1]))
        own = {"Description", "Conflicts", "After", "Wants", "DeviceAllow"}
        self.assertLessEqual({line.split("=")[0] for line in gpu - cpu}, own)
        self.assertEqual({line.split("=")[0] for line in cpu - gpu} - own, {"PrivateDevices", "MemoryDenyWriteExecute"})

    def test_examples_of_drop_ins_are_understood_and_leave_the_exposure_low(self):
        seen = set()
        for unit, example in drop_ins():
            seen.add(example.name)
            with self.subTest(unit=unit, example=example.name), tempfile.TemporaryDirectory() as root:
                install(root, unit, example)
                self.assertEqual(not_understood(root, unit), [])
                done = run("systemd-analyze", "security", "--offline=true", "--no-pager", f"--root={root}", f"--threshold={EXPOSURE_MAX}", unit)
                print(f"with {example.name}: {done.stdout.splitlines()[-1]}")
                self.assertEqual(done.returncode, 0, done.stdout)
        self.assertLessEqual({"remote-store.conf.example", "other-disks.conf.example"}, seen)

    def test_a_drop_in_that_is_wrong_is_noticed(self):
        with tempfile.TemporaryDirectory() as root:
            wrong = pathlib.Path(root, "wrong.conf.example")
            wrong.write_text("[Service]\nReadWritePath=/mnt\n")
            install(root, UNITS[0], wrong)
            self.assertNotEqual(not_understood(root, UNITS[0]), [])

    def test_credentials_are_in_a_drop_in_only(self):
        for unit in ALL_UNITS:
            self.assertFalse([line for line in settings(unit) if "Credential" in line])


class Files(unittest.TestCase):
    def test_sysusers_and_tmpfiles_make_what_the_units_use(self):
        with tempfile.TemporaryDirectory() as root:
            pathlib.Path(root, "etc").mkdir()
            done = run("systemd-sysusers", f"--root={root}", SYSTEMD / "kvist.sysusers")
            self.assertEqual(done.returncode, 0, done.stdout)
            users = {line.split(":")[0] for line in pathlib.Path(root, "etc/passwd").read_text().splitlines()}
            groups = {line.split(":")[0] for line in pathlib.Path(root, "etc/group").read_text().splitlines()}
            for unit in ALL_UNITS:
                values = dict(line.split("=", 1) for line in settings(unit))
                self.assertIn(values["User"], users)
                self.assertLessEqual({values["Group"], *values["SupplementaryGroups"].split()}, groups)
            done = run("systemd-tmpfiles", f"--root={root}", "--create", SYSTEMD / "kvist.tmpfiles")
            self.assertEqual(done.returncode, 0, done.stdout)
            self.assertEqual(pathlib.Path(root, "run/kvist").stat().st_mode & 0o777, 0o755)
            self.assertTrue(pathlib.Path(root, "etc/kvistd").is_dir())

    def test_kvistd_takes_its_configuration(self):
        for unit in UNITS:
            values = dict(line.split("=", 1) for line in settings(unit))
            # `check` is for this machine, which need not have the groups.
            own = grp.getgrgid(os.getgid()).gr_name
            groups = [f"--set={section}.socket_group={own}" for section in ("session", "admin")]
            done = run(KVISTD, "--config", SYSTEMD / "kvistd.toml", *groups, "config", "check")
            self.assertEqual((done.returncode, done.stdout), (0, f"{SYSTEMD / 'kvistd.toml'}: ok\n"))
            dumped = run(KVISTD, "--config", SYSTEMD / "kvistd.toml", "config", "diff").stdout
            for group in values["SupplementaryGroups"].split():
                self.assertIn(f'.socket_group = "{group}"', dumped)


if __name__ == "__main__":
    unittest.main()
