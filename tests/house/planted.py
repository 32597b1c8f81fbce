"""The house checks themselves: a small tree that is right passes, and each mistake planted in it is named."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
RIGHT = {
    "include/tutti/types.hpp": "#include <cstddef>\n",
    "base/status.h": '#include "tutti/types.hpp"\n#include <fmt/format.h>\n',
    "transport/transport.h": '#include "base/status.h"\n',
    "transport/shm/shm.h": '#include "transport/transport.h"\n#include "ring.h"\n',
    "transport/shm/ring.h": "#include <sys/mman.h>\n",
    "transport/inproc/inproc.h": '#include "transport/transport.h"\n',
    "collectives/plan/plan.h": '#include "base/status.h"\n',
    "collectives/communicator.cc": '#include "collectives/plan/plan.h"\n#include "transport/shm/shm.h"\n',
    "tests/plan/plan_test.cc": '#include <gtest/gtest.h>\n#include "collectives/plan/plan.h"\n',
}


class Planted(unittest.TestCase):
    def check(self, script, **changed):
        """Runs a check over the right tree plus `changed` (path -> text); returns its exit code and output."""
        with tempfile.TemporaryDirectory() as folder:
            for name, text in {**RIGHT, **changed.get("files", {})}.items():
                path = pathlib.Path(folder, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
            done = subprocess.run([sys.executable, HERE / script, folder], capture_output=True, text=True)
            return done.returncode, done.stdout + done.stderr

    def fails(self, script, files, *expected):
        code, output = self.check(script, files=files)
        self.assertEqual(code, 1, output)
        self.assertIn("1 problems", output)
        for text in expected:
            self.assertIn(text, output)

    def test_right_tree_passes(self):
        for script in ["includes.py", "files.py", "words.py", "std_headers.py"]:
            code, output = self.check(script)
            self.assertEqual(code, 0, output)

    def test_upward_include(self):
        self.fails("includes.py", {"topology/hosts.h": '#include "transport/transport.h"\n'},
                   "topology/hosts.h:1", "may not include room transport")

    def test_cycle_between_rooms(self):
        code, output = self.check("includes.py", files={"base/clock.h": '#include "transport/transport.h"\n'})
        self.assertEqual(code, 1, output)
        self.assertIn("cycle: base -> transport -> base", output)

    def test_sibling_transport(self):
        self.fails("includes.py", {"transport/shm/peer.h": '#include "transport/inproc/inproc.h"\n'},
                   "transport/shm/peer.h:1", "may not include room transport/inproc")

    def test_sibling_transport_by_relative_path(self):
        self.fails("includes.py", {"transport/shm/peer.h": '#include "../inproc/inproc.h"\n'},
                   "may not include room transport/inproc")

    def test_concrete_transport_in_executor(self):
        self.fails("includes.py", {"collectives/executor/host/walk.cc": '#include "transport/shm/shm.h"\n'},
                   "room collectives/executor may not include room transport/shm")

    def test_third_party_in_wrong_room(self):
        self.fails("includes.py", {"base/log.h": "#include <nlohmann/json.hpp>\n"}, "is not for this room")
        self.fails("includes.py", {"base/log.h": "#include <boost/any.hpp>\n"}, "does not list")

    def test_unknown_folder_and_missing_file(self):
        self.fails("includes.py", {"attic/old.h": "\n"}, "attic/old.h: belongs to no room")
        self.fails("includes.py", {"base/log.h": '#include "base/gone.h"\n'}, 'no file "base/gone.h"')

    def test_long_file(self):
        self.fails("files.py", {"base/long.cc": "int x;\n" * 601}, "base/long.cc: 601 lines")
        self.assertEqual(self.check("files.py", files={"base/long.cc": "int x;\n" * 600})[0], 0)

    def test_std_header(self):
        self.fails("std_headers.py", {"base/text.h": "#include <string>\nstd::vector<std::string> all;\n"},
                   "base/text.h: std::vector is <vector>'s")
        self.fails("std_headers.py", {"base/text.h": "#include <map>\n#include <string>\nstd::string all;  // std::map\n"},
                   "base/text.h: <map> is included in vain")
        own = {"base/text.h": "#include <string>\nstd::string all();\n",
               "base/text.cc": '#include "base/text.h"\nstd::string all() { return "std::vector"; }\n'}
        self.assertEqual(self.check("std_headers.py", files=own)[0], 0)

    def test_unfinished_word(self):
        self.fails("words.py", {"base/log.cc": "// TO" + "DO: later\n"}, "base/log.cc:1")


unittest.main()
