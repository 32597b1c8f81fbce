"""Counts the member functions and data members of every class of the product, and fails on one that has too many.

What counts: each declared function of the class itself, overloads each, constructors too. Destructors and what is defaulted or
deleted do not count, nor do types, friends, inherited functions, macros and constants (static and constexpr or const).
What may have more is listed in classes.txt with its numbers and a reason; when a class shrinks its line must follow, so that the
list only gets shorter. With --list after the folder it prints all classes, the largest first.
"""

import bisect
import re
import sys

import tree

MOST_FUNCTIONS = 30
MOST_MEMBERS = 20

LISTED = "tests/house/classes.txt"  # lines: name with namespaces, but for tutti; functions; data members; reason
NO_PRODUCT = ("tests/", "fuzz/", "training/torch_backend/tests/")
OPENS = {"(": ")", "[": "]", "{": "}"}
IGNORED = re.compile(r'//[^\n]*|/\*.*?\*/|(?:u8|[uUL])?R"([^ ()\\\n]*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|'
                     r"(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+'", re.DOTALL)
DIRECTIVE = re.compile(r"^[ \t]*#(?:[^\n\\]|\\.)*(?:\\\n(?:[^\n\\]|\\.)*)*", re.MULTILINE)
TOKEN = re.compile(r"[A-Za-z_]\w*|\d[\w.']*|::|->|<<|<=|\S")
IDENTIFIER = re.compile(r"[A-Za-z_]\w*")


def tokens_of(text):
    """The tokens without comments, literals and directives, and the line of each."""
    blank = lambda match: re.sub(r"[^\n]", " ", match.group(0)) if match.group(0)[0] == "/" else \
        '""' + "\n" * match.group(0).count("\n")
    text = DIRECTIVE.sub(lambda match: "\n" * match.group(0).count("\n"), IGNORED.sub(blank, text))
    ends = [match.start() for match in re.finditer("\n", text)]
    matches = [match for match in TOKEN.finditer(text) if match.group(0) != '"']
    return [match.group(0) for match in matches], [bisect.bisect(ends, match.start()) + 1 for match in matches]


def end_of_bracket(tokens, at):
    """Behind the bracket that closes the one at `at`."""
    depth = 0
    while at < len(tokens):
        if tokens[at] in OPENS:
            depth += 1
        elif tokens[at] in OPENS.values():
            depth -= 1
            if depth == 0:
                return at + 1
        at += 1
    return at


def end_of_angles(tokens, at):
    """Behind the `>` that closes the `<` at `at`."""
    depth = 0
    while at < len(tokens):
        if tokens[at] in OPENS:
            at = end_of_bracket(tokens, at)
            continue
        if tokens[at] == ";":  # it was none: a < b
            break
        depth += {"<": 1, ">": -1}.get(tokens[at], 0)
        at += 1
        if depth == 0:
            break
    return at


def head_of(tokens, at):
    """The name of the class whose definition begins at `at` with class, struct or union, and where its `{` is; or None."""
    if at and tokens[at - 1] in ("enum", "friend"):
        return None
    at += 1
    words, name = [], ""
    while at < len(tokens):
        token = tokens[at]
        if token == "[" or (token == "alignas" and tokens[at + 1] == "("):
            at = end_of_bracket(tokens, at + (token == "alignas"))
        elif token == "<" and name:
            end = end_of_angles(tokens, at)
            name += "".join(tokens[at:end])
            at = end
        elif token == "::" or (name and tokens[at - 1] == "::"):
            name += token
            at += 1
        elif token == "final":
            at += 1
        elif IDENTIFIER.fullmatch(token):
            if name:
                words.append(name)
            name = token
            at += 1
        elif token == ":" and name:
            while at < len(tokens) and tokens[at] not in "{;":
                at = end_of_bracket(tokens, at) if tokens[at] == "(" else at + 1
        elif token == "{" and all(word.isupper() for word in words):  # else it is `struct msghdr message{}`
            return name or "(unnamed)", at
        else:
            return None
    return None


def end_of_function(tokens, at):
    """Behind a function whose parameters end before `at`, and the word behind its `=` (default, delete or 0), if any."""
    word = ""
    while at < len(tokens):
        token = tokens[at]
        if token == ";":
            return at + 1, word
        if token == "=":
            word = tokens[at + 1]
        if token == ":":  # what a constructor initialises; then its body
            at += 1
            while at < len(tokens) and tokens[at] not in "({":
                at = end_of_angles(tokens, at) if tokens[at] == "<" else at + 1
            at = end_of_bracket(tokens, at)
            if at < len(tokens) and tokens[at] == ",":
                tokens[at] = ":"
            continue
        if token == "{":
            at = end_of_bracket(tokens, at)
            return at + (at < len(tokens) and tokens[at] == ";"), word
        at = end_of_bracket(tokens, at) if token in OPENS else at + 1
    return at, word


def end_of_data(tokens, at):
    """Behind the `;` of a declaration, and how many commas are in it outside of brackets."""
    commas = 0
    while at < len(tokens) and tokens[at] != ";":
        commas += tokens[at] == ","
        if tokens[at] == "<" and IDENTIFIER.fullmatch(tokens[at - 1]):
            at = end_of_angles(tokens, at)
        else:
            at = end_of_bracket(tokens, at) if tokens[at] in OPENS else at + 1
    return at + 1, commas


class Members:
    """Reads the members of one class: `tokens` is what is between its braces."""

    def __init__(self, name, tokens):
        self.name = re.sub(r"<.*", "", name.split("::")[-1])
        self.tokens = list(tokens)
        self.functions = 0
        self.data = 0
        at = 0
        while at < len(self.tokens):
            at = self.declaration(at)

    def declaration(self, at):
        tokens = self.tokens
        first = tokens[at]
        if first == ";":
            return at + 1
        if first in ("public", "protected", "private") and tokens[at + 1] == ":":
            return at + 2
        if first == "template":
            return end_of_angles(tokens, at + 1)
        if first == "requires":
            return self.behind_requires(at + 1)
        if first in ("using", "typedef", "static_assert"):
            return end_of_data(tokens, at)[0]
        if first == "friend":
            return end_of_function(tokens, at)[0]
        if first in ("class", "struct", "union", "enum"):
            return self.type(at)
        return self.function_or_data(at)

    def behind_requires(self, at):
        """Behind the constraint of a template: (...) or Concept<...>, joined by && and ||."""
        tokens = self.tokens
        while True:
            if tokens[at] == "(":
                at = end_of_bracket(tokens, at)
            else:
                while IDENTIFIER.fullmatch(tokens[at]) or tokens[at] == "::":
                    at += 1
                    if tokens[at] == "<":
                        at = end_of_angles(tokens, at)
                        break
            if tokens[at] not in "&|":
                return at
            at += 2

    def type(self, at):
        """A type inside the class; what is declared with it counts: struct { int a; } pair_;"""
        tokens = self.tokens
        end = at
        while end < len(tokens) and tokens[end] not in "{;(=":
            end += 1
        if end < len(tokens) and tokens[end] == "{" and (tokens[at] == "enum" or head_of(tokens, at)):
            end = end_of_bracket(tokens, end)
            if tokens[end] != ";":
                self.data += 1
            return end_of_data(tokens, end)[0]
        if end < len(tokens) and tokens[end] == ";" and end - at <= 3 + 2 * (tokens[at] == "enum"):
            if not any(IDENTIFIER.fullmatch(tokens[k]) and IDENTIFIER.fullmatch(tokens[k + 1]) for k in range(at + 1, end - 1)
                       if tokens[k] not in ("class", "struct")):
                return end + 1  # declared ahead
        return self.function_or_data(at + 1)

    def function_or_data(self, begin):
        tokens, at = self.tokens, begin
        words = []
        while at < len(tokens):
            token = tokens[at]
            if token == "[" or (token in ("alignas", "explicit", "decltype", "noexcept") and tokens[at + 1] == "("):
                at = end_of_bracket(tokens, at + (token != "["))
            elif token == "operator":
                at += 1
                words.append("operator")
                if tokens[at] == "(":
                    at += 2
                while tokens[at] != "(":
                    at = end_of_angles(tokens, at) if tokens[at] == "<" and IDENTIFIER.fullmatch(tokens[at - 1]) and \
                        tokens[at - 1] != "operator" else at + 1
            elif token == "<" and words:
                at = end_of_angles(tokens, at)
            elif token == "(":
                if tokens[at + 1] in ("*", "&") and words:  # a pointer to a function
                    break
                return self.function(words, at)
            elif token in "={;:":
                break
            else:
                words.append(token)
                at += 1
        end, commas = end_of_data(tokens, at)
        if not ("static" in words and {"constexpr", "const"} & set(words)):
            self.data += 1 + commas + words.count(",")
        return end

    def function(self, words, at):
        end, word = end_of_function(self.tokens, end_of_bracket(self.tokens, at))
        is_macro = len([each for each in words if IDENTIFIER.fullmatch(each)]) == 1 and words[-1] not in (self.name, "operator")
        if "~" not in words and word not in ("default", "delete") and not is_macro:
            self.functions += 1
        return end


def namespace_of(tokens, at):
    """The name of the namespace that begins at `at`, without tutti, and where its `{` is; or None."""
    brace = at + 1
    while brace < len(tokens) and (IDENTIFIER.fullmatch(tokens[brace]) or tokens[brace] == "::"):
        brace += 1
    if brace == len(tokens) or tokens[brace] != "{":
        return None
    return "::".join(part for part in "".join(tokens[at + 1:brace]).split("::") if part != "tutti"), brace


def classes_of(text):
    """For each class defined in a source: its name, line, number of functions and of data members."""
    tokens, lines = tokens_of(text)
    found, enclosing = [], []
    for at, token in enumerate(tokens):
        is_class = token in ("class", "struct", "union")
        head = head_of(tokens, at) if is_class else namespace_of(tokens, at) if token == "namespace" else None
        if head is None:
            continue
        name, brace = head
        end = end_of_bracket(tokens, brace)
        while enclosing and enclosing[-1][1] <= at:
            enclosing.pop()
        enclosing.append((re.sub(r"<.*", "", name), end))
        if is_class:
            members = Members(name, tokens[brace + 1:end - 1])
            found.append(("::".join(outer for outer, _ in enclosing if outer), lines[at], members.functions, members.data))
    return found


def problem_of(where, name, functions, members, exceptions):
    if functions <= MOST_FUNCTIONS and members <= MOST_MEMBERS:
        return None
    if name not in exceptions:
        return (f"{where}: {name} has {functions} functions and {members} data members; cut it into parts, "
                f"at most {MOST_FUNCTIONS} and {MOST_MEMBERS} are allowed")
    for what, number, most in (("functions", functions, max(MOST_FUNCTIONS, exceptions[name][0])),
                               ("data members", members, max(MOST_MEMBERS, exceptions[name][1]))):
        if number > most:
            return f"{where}: {name} has {number} {what}; at most {most} are allowed ({LISTED})"
    return None


def stale(found, exceptions):
    """What is wrong with the list: entries that allow more than there is."""
    for name, allowed in exceptions.items():
        numbers = [each[2:] for each in found if each[1] == name]
        if not numbers:
            yield f"{LISTED}: there is no class {name}; remove its line, or rename it"
            continue
        most = tuple(map(max, zip(*numbers)))
        if most[0] <= MOST_FUNCTIONS and most[1] <= MOST_MEMBERS:
            yield f"{LISTED}: {name} needs no exception; remove its line"
        elif most[0] < allowed[0] or most[1] < allowed[1]:
            yield (f"{LISTED}: {name} has shrunk from {allowed[0]} functions and {allowed[1]} data members to {most[0]} "
                   f"and {most[1]}; correct its line")


def main():
    lists = sys.argv[-1] == "--list"
    if lists:
        sys.argv.pop()
    root = tree.root_from_arguments(__doc__)
    paths = [path for path in tree.files_of(root, tree.CPP) if not str(path).startswith(NO_PRODUCT)]
    found = [(f"{path}:{line}", name, functions, members) for path in paths for name, line, functions, members
             in classes_of((root / path).read_text(encoding="utf-8", errors="replace"))]
    if lists:
        print("functions  members  class")
        for where, name, functions, members in sorted(
                found, key=lambda each: (-max(each[2] / MOST_FUNCTIONS, each[3] / MOST_MEMBERS), each[1])):
            print(f"{functions:9}  {members:7}  {name}  ({where})")
    exceptions = tree.exceptions_of(root, LISTED, numbers=2)
    problems = [problem for each in found if (problem := problem_of(*each, exceptions))]
    tree.finish("house.classes", len(paths), problems + list(stale(found, exceptions)))


if __name__ == "__main__":
    main()
