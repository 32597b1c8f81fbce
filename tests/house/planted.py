"""The house checks themselves: a small tree that is right passes, and each mistake planted in it is named."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

import classes
import one_call
import picture
import words

HERE = pathlib.Path(__file__).resolve().parent
RIGHT = {
    "include/tutti/types.hpp": "#include <cstddef>\n",
    "base/status.h": '#include "tutti/types.hpp"\n#include <fmt/format.h>\n',
    "transport/transport.h": '#include "base/status.h"\n',
    "transport/shm/shm.h": '#include "transport/transport.h"\n#include "ring.h"\n',
    "transport/shm/ring.h": "#include <sys/mman.h>\n",
    "transport/inproc/inproc.h": '#include "transport/transport.h"\n',
    "collectives/plan/plan.h": '#include "base/status.h"\n',
    "collectives/create.cc": '#include "collectives/plan/plan.h"\n#include "transport/shm/shm.h"\n',
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
        for script in ["includes.py", "files.py", "words.py", "std_headers.py", "classes.py"]:
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
                   "room collectives/executor/host may not include room transport/shm")

    def test_third_party_in_wrong_room(self):
        self.fails("includes.py", {"base/log.h": "#include <nlohmann/json.hpp>\n"}, "is not for this room")
        self.fails("includes.py", {"base/log.h": "#include <boost/any.hpp>\n"}, "does not list")

    def test_unknown_folder_and_missing_file(self):
        self.fails("includes.py", {"attic/old.h": "\n"}, "attic/old.h: belongs to no room")
        self.fails("includes.py", {"base/log.h": '#include "base/gone.h"\n'}, 'no file "base/gone.h"')

    def test_long_file(self):
        self.fails("files.py", {"base/long.cc": "int x;\n" * 601}, "base/long.cc: 601 lines")
        self.assertEqual(self.check("files.py", files={"base/long.cc": "int x;\n" * 600})[0], 0)

    def test_full_folder(self):
        def of(count):
            return {f"transport/shm/part{k}.h": "\n" for k in range(count - 2)}  # there are two
        algorithms = {f"collectives/algorithms/all_reduce_{k}.cc": "\n" for k in range(40)}
        self.assertEqual(self.check("files.py", files=algorithms)[0], 0)
        self.assertEqual(self.check("files.py", files=of(30))[0], 0)
        self.fails("files.py", of(31), "transport/shm: 31 sources; divide it")

    def test_large_class(self):
        def of(functions, members, head="class Large"):
            return (f"#define CLASS class\nnamespace tutti::shm {{ /* class Old {{ */\n{head} {{\n public:\n" +
                    "".join(f"  int f{k}(int a = 1, const char* b = \"{{;\") const {{ return a < {k} ? 1 : 2; }}\n"
                            for k in range(functions)) +
                    "".join(f"  std::map<int, std::function<void(int)>> m{k}_{{[] {{ return 1; }}}};\n" for k in range(members)) +
                    "};\n}  // namespace\n")
        path = "transport/shm/large.h"
        self.assertEqual(self.check("classes.py", files={path: of(30, 20)})[0], 0)
        self.fails("classes.py", {path: of(31, 20)}, f"{path}:3: shm::Large has 31 functions and 20 data members")
        self.fails("classes.py", {path: of(0, 21, "template <class T, template <class> class U>\nstruct TUTTI_API Large final : A<T, 2>, B")},
                   f"{path}:4: shm::Large has 0 functions and 21")
        inner = of(30, 19).replace(" public:\n", " public:\n" + "".join(f"  struct S{k} {{ int a; int f(); }} s{k};\n" for k in range(2)))
        self.fails("classes.py", {path: inner}, "shm::Large has 30 functions and 21 data members")

        listed = "tests/house/classes.txt"
        self.assertEqual(self.check("classes.py", files={path: of(33, 21), listed: "shm::Large 33 21 why\n"})[0], 0)
        self.fails("classes.py", {path: of(34, 21), listed: "shm::Large 33 21 why\n"}, "has 34 functions; at most 33")
        self.fails("classes.py", {path: of(32, 21), listed: "shm::Large 33 21 why\n"}, "has shrunk from 33 functions")
        self.fails("classes.py", {path: of(30, 20), listed: "shm::Large 33 21 why\n"}, "needs no exception")
        self.fails("classes.py", {listed: "shm::Large 33 21 why\n"}, "there is no class shm::Large")
        self.assertIn("a reason", self.check("classes.py", files={listed: "shm::Large 33 21\n"})[1])

    def test_what_counts_in_a_class(self):
        counted = {
            "~X();": (0, 0), "X() = default;": (0, 0), "X(const X&) = delete;": (0, 0), "explicit X(int a) : a_(a), b_{1} {}": (1, 0),
            "virtual int f() const noexcept = 0;": (1, 0), "template <class T> requires(sizeof(T) > 1) static T f(T a);": (1, 0),
            "auto f() -> Result<std::vector<int>> { return {}; }": (1, 0), "bool operator<(const X& x) const;": (1, 0),
            "bool operator==(const X&) const = default;": (0, 0), "void operator()(int) { if (a < b) c(); }": (1, 0),
            "explicit operator bool() const;": (1, 0), "X& operator=(X&& x);": (1, 0), "std::ostream& operator<<(int);": (1, 0),
            "friend bool operator==(X, X) { return true; }": (0, 0), "using A = std::vector<int>;": (0, 0), "class Y;": (0, 0),
            "struct Y { int a; };": (0, 0), "enum class E : int { a, b };": (0, 0), "enum E { a } e_ = a;": (0, 1),
            "static constexpr int k = 1;": (0, 0), "static int k;": (0, 1), "int a, b = 2;": (0, 2), "int bits : 3;": (0, 1),
            "void (*call_)(int);": (0, 1), "std::array<int, 1 << 3> a_;": (0, 1), "alignas(64) std::atomic<int> a_{0};": (0, 1),
            "TUTTI_MACRO(X, int);": (0, 0), "[[nodiscard]] int f();": (1, 0), "struct sockaddr_in address_{};": (0, 1),
            "private: int a_ = f(1);": (0, 1), "TUTTI_API void f();": (1, 0), "std::unique_ptr<A, void (*)(A*)> a_;": (0, 1),
            "static_assert(sizeof(int) == 4);": (0, 0), "int values_[kA < kB ? 1 : 2];": (0, 1),
        }
        for text, expected in counted.items():
            found = classes.classes_of(f"class X {{ {text} int last_; }};")
            self.assertEqual([each[2:] for each in found if each[0] == "X"], [(expected[0], expected[1] + 1)], text)

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

    def test_glossary(self):
        def of(row):
            return {"docs/glossary.md": "| here | meaning | NCCL | MPI | others |\n|---|---|---|---|---|\n" + row + "\n",
                    "base/rail.h": "struct Rail {};  // of several\n// ports\n"}
        self.assertEqual(self.check("glossary.py", files=of("| rail (`Rail`) | a port | a | | |"))[0], 0)
        self.assertEqual(self.check("glossary.py", files=of("| several ports | all | a | | |"))[0], 0)
        self.fails("glossary.py", of("| rail (`Rails`) | a port | a | | |"), "glossary.md:3: 'Rails' is not in the sources")
        self.fails("glossary.py", of("| one port | a port | a | | |"), "'one port' is not in the sources")
        self.fails("glossary.py", of("| rail (`Rail`) | | a | | |"), "the second one with the meaning")

    def test_links(self):
        def of(text):
            return {"docs/a.md": text + "\n"}
        right = "[b](../base/status.h#top), [w](https://a.b/c), `shm/ring.h`, `base/<x>.h`, `build/x.h`, `*_test.cc`"
        self.assertEqual(self.check("links.py", files=of(right))[0], 0)
        self.fails("links.py", of("[b](base/status.h)"), "docs/a.md:1: there is no base/status.h")
        self.fails("links.py", of("see `shm/rings.h`"), "docs/a.md:1: there is no file shm/rings.h")

    def test_picture(self):
        with tempfile.TemporaryDirectory() as folder:
            for name, text in RIGHT.items():
                path = pathlib.Path(folder, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
            dot = picture.dot_of(picture.arrows_of(pathlib.Path(folder)))
        self.assertIn('"transport" -> "base"', dot)
        self.assertNotIn('"collectives" -> "base"', dot)  # it follows
        drawn = {picture.DOT: dot, picture.SVG: "<svg/>\n" + picture.stamp(dot)}
        self.assertEqual(self.check("picture.py", files=drawn)[0], 0)
        self.fails("picture.py", {**drawn, "topology/host.h": "#include <vector>\n"}, "rooms.dot is not what the includes say")
        self.fails("picture.py", {**drawn, picture.SVG: "<svg/>\n"}, "rooms.svg is not drawn from")

    def test_one_call(self):
        def of(first, repeated, lines=1):
            names = [f"base/part{k}.h" for k in range(max(first, repeated))]
            rows = ["".join(f"| `{name}` | what |\n" for name in names[:count]) for count in (first, repeated)]
            headings = list(one_call.MOST)
            return {one_call.PAGE: f"{headings[0]}\n{rows[0]}\n{headings[1]}\n{rows[1]}\n## 1. More\n| `base/x.h` |\n",
                    **{name: "\n" * lines for name in names}}
        self.assertEqual(self.check("one_call.py", files=of(12, 5, 200))[0], 0)
        self.fails("one_call.py", of(13, 5), "13 files with 13 lines; at most 12")
        self.fails("one_call.py", of(12, 6), "6 files with 6 lines; at most 5")
        self.fails("one_call.py", of(10, 5, 251), "10 files with 2510 lines")
        self.fails("one_call.py", {**of(0, 5)}, "no file is listed")

    def test_retired_word(self):
        table = {"tests/house/words.txt": "# list\nhubs? - BootstrapServer\nHub tests,docs/a.md BootstrapServer\n"}
        for text in ["int hub_ = 1;", "// two hubs", "class TestHub;", "int my_hub();"]:
            self.fails("words.py", {**table, "base/log.cc": text + "\n"}, "base/log.cc:1", "is called BootstrapServer now")
        self.fails("words.py", {**table, "base/hub.cc": "\n"}, "base/hub.cc: 'hub'", "rename the file")
        right = {"base/log.cc": "int hubbub, github;\n", "tests/a_test.cc": "class Hub;\n", "docs/notes/old.md": "hub\n",
                 "docs/a.md": "GitHub, Hub\n"}
        self.assertEqual(self.check("words.py", files={**table, **right})[0], 0)

    def test_vague_words(self):
        self.assertEqual(self.check("words.py", files={"base/log.cc": "// Nobody\n" * words.MOST_VAGUE})[0], 0)
        self.fails("words.py", {"base/log.cc": "// Nobody\n" * (words.MOST_VAGUE + 1)}, f"{words.MOST_VAGUE + 1} vague words")
        fragment = "/// Of the rank.\n/// That goes on.\nint f();\n"
        self.assertEqual(self.check("words.py", files={"base/log.h": fragment * words.MOST_FRAGMENTS})[0], 0)
        self.fails("words.py", {"base/log.h": fragment * (words.MOST_FRAGMENTS + 1)}, "comments without a subject")


unittest.main()
