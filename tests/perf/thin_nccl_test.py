"""scripts/thin_nccl.py on a library with fat binaries that were made up.
Usage: thin_nccl_test.py SOURCE_FOLDER"""
import contextlib
import io
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(sys.argv.pop(1), "scripts")))
import thin_nccl  # noqa: E402

PTX, CODE = 1, thin_nccl.ELF


def entry(kind, architecture, content):
    header = struct.pack("<HHIQ", kind, 0x101, 64, len(content)).ljust(28, b"\1") + struct.pack("<I", architecture)
    return header.ljust(64, b"\1") + content


def fat_binary(*made):
    content = b"".join(made)
    return struct.pack("<IHHQ", thin_nccl.MAGIC, 1, 16, len(content)) + content


# Two fat binaries with a gap between them, as alignment makes one.
FAT = fat_binary(entry(CODE, 80, b"old code"), entry(CODE, 90, b"this code"), entry(PTX, 90, b"some text")) + bytes(5)
FAT += bytes(-len(FAT) % 8) + fat_binary(entry(CODE, 90, b"more of it"), entry(CODE, 100, b"new code"))
FOR_LINKERS = fat_binary(entry(CODE, 90, b"linked later"))
SOURCE = """
__asm__(".section .nv_fatbin, \\"a\\"\\n.balign 8\\n.incbin \\"fat\\"\\n.section __nv_relfatbin, \\"a\\"\\n.incbin \\"linkers\\"\\n.text\\n");
int version(void) { return 23007; }
"""


@unittest.skipUnless(shutil.which("cc"), "there is no cc")
class Thin(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.room = pathlib.Path(folder.name)
        for name, content in [("fat", FAT), ("linkers", FOR_LINKERS), ("library.c", SOURCE.encode())]:
            (self.room / name).write_bytes(content)
        subprocess.run(["cc", "-g", "-shared", "-fPIC", "-o", "library", "library.c"], cwd=self.room, check=True)

    def thin(self, architecture):
        """As it comes out of pack and unpack."""
        thin_nccl.main(["pack", str(self.room / "library"), architecture, str(self.room / "packed")])
        thin_nccl.main(["unpack", str(self.room / "packed"), str(self.room / "out")])
        return (self.room / "out").read_bytes()

    def test_one_gpus_code_is_left(self):
        out = self.thin("90")
        for kept in (b"this code", b"more of it"):
            self.assertTrue(kept in out, kept)
        for gone in (b"old code", b"new code", b"some text", b"linked later"):
            self.assertFalse(gone in out, gone)

    def test_nothing_moves(self):
        out, whole = self.thin("90"), (self.room / "library").read_bytes()
        self.assertEqual(len(out), len(whole))
        self.assertTrue(all(new in (old, 0) for new, old in zip(out, whole)))
        asked = subprocess.run([sys.executable, "-c", "import ctypes, sys; print(ctypes.CDLL(sys.argv[1]).version())",
                                str(self.room / "out")], capture_output=True, text=True)
        self.assertEqual(asked.stdout, "23007\n")

    def refused(self, *words):
        with contextlib.redirect_stderr(io.StringIO()), self.assertRaises(SystemExit) as refused:
            thin_nccl.main(list(words))
        return str(refused.exception)

    def test_a_gpu_that_it_has_no_code_for(self):
        self.assertEqual(self.refused("pack", str(self.room / "library"), "75", str(self.room / "packed")),
                         "thin_nccl: it has no code for compute capability 7.5, but for 8.0, 9.0, 10.0")

    def test_what_is_no_library(self):
        self.assertEqual(self.refused("pack", str(self.room / "library.c"), "90", "packed"), "thin_nccl: it is no 64-bit ELF file")


unittest.main()
