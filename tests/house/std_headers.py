"""Fails on a C++ file that uses a name of the standard library without including its header, or includes one in vain.

A source may leave to its own header (x.cc and x_test.cc to x.h) what that includes. Only names that are written with std::
are looked at; one header that has the name is enough. Parts of a file (x-inl.h) leave it to the file that they are of. With
--mend after the folder it adds and removes those headers itself.
"""

import re
import sys

import tree

# Header: the names of which one is a use of it. Where two headers have a name, either is enough.
NAMES = {
    "algorithm": "adjacent_find all_of any_of binary_search clamp copy copy_if copy_n count count_if equal equal_range fill "
                 "fill_n find find_if find_if_not for_each generate includes inplace_merge is_sorted iter_swap "
                 "lexicographical_compare lower_bound max max_element merge min min_element minmax minmax_element mismatch "
                 "next_permutation none_of nth_element partial_sort partition remove remove_if replace reverse rotate search "
                 "set_difference set_intersection set_union shuffle sort stable_partition stable_sort swap_ranges transform "
                 "unique upper_bound",
    "any": "any any_cast",
    "array": "array to_array",
    "atomic": "atomic atomic_bool atomic_flag atomic_int atomic_ref atomic_signal_fence atomic_thread_fence memory_order "
              "memory_order_acq_rel memory_order_acquire memory_order_relaxed memory_order_release memory_order_seq_cst",
    "barrier": "barrier",
    "bit": "bit_cast bit_ceil bit_floor bit_width countl_zero countr_one countr_zero endian has_single_bit popcount rotl rotr",
    "bitset": "bitset",
    "charconv": "chars_format from_chars to_chars",
    "chrono": "chrono",
    "cmath": "abs cbrt ceil copysign cos erf exp exp2 expm1 fabs floor fma fmod hypot isfinite isinf isnan ldexp llround log "
             "log10 log1p log2 lround nearbyint nextafter pow remainder rint round sin sqrt tanh trunc",
    "compare": "partial_ordering strong_ordering weak_ordering",
    "condition_variable": "condition_variable condition_variable_any cv_status",
    "csignal": "raise sig_atomic_t signal",
    "cstdarg": "va_list",
    "cstddef": "byte max_align_t nullptr_t ptrdiff_t size_t to_integer",
    "cstdint": "int16_t int32_t int64_t int8_t intptr_t uint16_t uint32_t uint64_t uint8_t uintptr_t",
    "cstdio": "FILE fclose fflush fgets fopen fprintf fputc fputs fread fseek fwrite printf puts remove rename snprintf "
              "sprintf sscanf vsnprintf",
    "cstdlib": "_Exit abort abs aligned_alloc atexit atoi calloc div exit free getenv malloc quick_exit realloc strtod strtol "
               "strtoll strtoul strtoull system",
    "cstring": "memchr memcmp memcpy memmove memset strchr strcmp strerror strlen strncmp strncpy strrchr strstr strtok",
    "ctime": "gmtime localtime mktime strftime time time_t tm",
    "deque": "deque",
    "exception": "current_exception exception exception_ptr make_exception_ptr rethrow_exception set_terminate terminate "
                 "uncaught_exceptions",
    "filesystem": "filesystem",
    "fstream": "fstream ifstream ofstream",
    "functional": "bind cref equal_to function greater greater_equal hash invoke less less_equal minus mem_fn multiplies "
                  "not_fn plus ref reference_wrapper",
    "future": "async future future_status launch packaged_task promise shared_future",
    "initializer_list": "initializer_list",
    "iomanip": "quoted setfill setprecision setw",
    "ios": "hex ios ios_base streamoff streamsize",
    "iostream": "cerr cin clog cout",
    "istream": "istream ws",
    "iterator": "advance back_inserter begin data distance empty end inserter istream_iterator istreambuf_iterator "
                "make_move_iterator next ostream_iterator prev rbegin rend reverse_iterator size ssize",
    "latch": "latch",
    "limits": "numeric_limits",
    "list": "list",
    "map": "map multimap",
    "memory": "addressof align allocator allocate_shared default_delete destroy_at enable_shared_from_this make_shared "
              "make_unique shared_ptr static_pointer_cast uninitialized_copy unique_ptr weak_ptr",
    "mutex": "adopt_lock call_once defer_lock lock lock_guard mutex once_flag recursive_mutex scoped_lock timed_mutex "
             "try_to_lock unique_lock",
    "new": "align_val_t bad_alloc launder nothrow",
    "numbers": "numbers",
    "numeric": "accumulate adjacent_difference exclusive_scan gcd inclusive_scan inner_product iota lcm midpoint partial_sum "
               "reduce",
    "optional": "bad_optional_access make_optional nullopt nullopt_t optional",
    "ostream": "endl flush ostream",
    "queue": "priority_queue queue",
    "random": "bernoulli_distribution discrete_distribution minstd_rand mt19937 mt19937_64 normal_distribution "
              "random_device seed_seq uniform_int_distribution uniform_real_distribution",
    "ranges": "ranges views",
    "regex": "regex regex_match regex_replace regex_search smatch sregex_iterator",
    "semaphore": "binary_semaphore counting_semaphore",
    "set": "multiset set",
    "shared_mutex": "shared_lock shared_mutex",
    "source_location": "source_location",
    "span": "as_bytes as_writable_bytes dynamic_extent span",
    "sstream": "istringstream ostringstream stringstream",
    "stack": "stack",
    "stdexcept": "domain_error invalid_argument length_error logic_error out_of_range overflow_error range_error "
                 "runtime_error",
    "stop_token": "stop_source stop_token",
    "streambuf": "streambuf",
    "string": "basic_string char_traits getline stod stof stoi stol stoll stoul stoull string to_string u16string",
    "string_view": "basic_string_view string_view",
    "system_error": "errc error_code generic_category make_error_code system_category system_error",
    "thread": "jthread this_thread thread",
    "tuple": "apply forward_as_tuple ignore make_from_tuple make_tuple tie tuple tuple_cat",
    "type_traits": "add_const_t bool_constant common_type_t conditional_t decay_t enable_if_t extent_v false_type "
                   "has_unique_object_representations_v integral_constant invoke_result_t is_arithmetic_v is_base_of_v "
                   "is_const_v is_convertible_v is_enum_v is_floating_point_v is_integral_v is_invocable_r_v "
                   "is_invocable_v is_lvalue_reference_v is_nothrow_move_constructible_v is_pointer_v is_same "
                   "is_same_v is_signed_v is_standard_layout_v is_trivially_copyable_v is_trivially_destructible_v "
                   "is_unsigned_v is_void_v make_signed_t make_unsigned_t remove_const_t remove_cvref_t "
                   "remove_pointer_t remove_reference_t true_type type_identity_t underlying_type_t void_t",
    "typeinfo": "type_info",
    "unordered_map": "unordered_map unordered_multimap",
    "unordered_set": "unordered_set",
    "utility": "as_const cmp_less declval exchange forward in_place in_place_t index_sequence index_sequence_for "
               "integer_sequence make_index_sequence make_integer_sequence make_pair move pair piecewise_construct swap "
               "to_underlying",
    "variant": "bad_variant_access get_if holds_alternative monostate variant variant_size_v visit",
    "vector": "vector",
}
# What a header is known to have beside its own names, by the standard or by all libraries.
ALSO = {
    "fstream": ["ostream", "istream", "ios"], "sstream": ["ostream", "istream", "ios"],
    "iostream": ["ostream", "istream", "ios"], "ostream": ["ios"], "istream": ["ios", "ostream"], "iomanip": ["ios"],
    "stdexcept": ["exception"], "system_error": ["stdexcept"], "new": ["exception"],
    "thread": ["stop_token", "compare"],
}
# By the standard these have size_t, and these begin(), size() and data().
HAVE_SIZE_T = ["cstdio", "cstdlib", "cstring", "ctime"]
HAVE_RANGES = ["array", "deque", "list", "map", "regex", "set", "span", "string", "string_view", "unordered_map",
               "unordered_set", "vector"]
RANGE_NAMES = set("begin data empty end rbegin rend size ssize".split())
# A header that is included for more than its names: literals, operators, members, or for a user's sake.
NEVER_IN_VAIN = {"algorithm", "cmath", "compare", "cstddef", "cstdint", "cstdio", "cstdlib", "ctime", "csignal", "exception",
                 "functional", "initializer_list", "ios", "iterator", "istream", "memory", "new", "ostream", "string",
                 "type_traits", "typeinfo", "utility", "streambuf", "system_error", "iomanip", "cstring", "tuple"}

OWNERS = {}
for _header, _names in NAMES.items():
    for _name in _names.split():
        OWNERS.setdefault(_name, []).append(_header)

IGNORED = re.compile(r'//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\'', re.DOTALL)
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)
STD = re.compile(r"\bstd::(\w+)")


def includes_of(text):
    return {name for _, name in INCLUDE.findall(text)}


def is_own(path, name):
    """Whether this is the header of x.cc, x_test.cc or x_slow_test.cc."""
    stem = re.sub(r"(_slow)?(_test)?$", "", path.stem)
    return re.fullmatch(rf"(.*/)?{re.escape(stem)}\.(h|hpp)", name) is not None


def own_header(root, path, included):
    for name in sorted(included, key=lambda name: (not name.startswith(f"{path.parent}/"), name)):
        if is_own(path, name):
            for folder in ("", "include/", "training/torch_backend/"):
                if (root / (folder + name)).is_file():
                    return (root / (folder + name)).read_text(encoding="utf-8", errors="replace")
    return ""


def has(header, name, included):
    return (header in included or any(header in ALSO.get(other, ()) for other in included) or header[1:] + ".h" in included
            or (name == "size_t" and any(other in included for other in HAVE_SIZE_T))
            or (name in RANGE_NAMES and any(other in included for other in HAVE_RANGES)))


def check(root, path):
    """The headers that a file lacks, each with a name that it is needed for, and those that it includes in vain."""
    text = (root / path).read_text(encoding="utf-8", errors="replace")
    here = includes_of(text)
    included = here if path.suffix != ".cc" else here | includes_of(own_header(root, path, here))
    code = IGNORED.sub(" ", INCLUDE.sub(" ", text))
    used = set(STD.findall(code))
    lacks = {}
    for name in sorted(used):
        owners = OWNERS.get(name, [])
        if owners and not any(has(owner, name, included) for owner in owners):
            lacks.setdefault(owners[0], name)
    words = set(re.findall(r"\w+", code))
    in_vain = [header for header in here & NAMES.keys() - NEVER_IN_VAIN if not words & set(NAMES[header].split())]
    return lacks, in_vain


STD_LINE = re.compile(r"#include <[^.>]+(\.hpp)?>")  # clang-format sorts these into one block


def mend(path, lines, lacks, in_vain):
    """The lines with those headers added, in order, and removed."""
    lines = [line for line in lines if line not in {f"#include <{header}>" for header in in_vain}]
    new = [f"#include <{header}>" for header in lacks]
    includes = [at for at, line in enumerate(lines) if line.startswith("#include ")]
    block = [at for at in includes if STD_LINE.match(lines[at])]
    if block:
        begin = end = block[0]
        while end < len(lines) and STD_LINE.match(lines[end]):
            end += 1
        return lines[:begin] + sorted(set(new + lines[begin:end])) + lines[end:]
    new.sort()
    others = [at for at in includes if lines[at].startswith("#include <")]
    if others:  # C headers: behind their block
        end = others[0]
        while end < len(lines) and lines[end].startswith("#include <"):
            end += 1
        return lines[:end] + ["", *new] + lines[end:]
    if includes and path.suffix == ".cc" and is_own(path, lines[includes[0]].split('"')[1]):
        return lines[:includes[0] + 1] + ["", *new] + lines[includes[0] + 1:]  # its own header stands alone
    at = includes[0] if includes else next(at for at, line in enumerate(lines) if line.startswith("#pragma once")) + 2
    return lines[:at] + [*new, ""] + lines[at:]


def main():
    mends = sys.argv[-1] == "--mend"
    if mends:
        sys.argv.pop()
    root = tree.root_from_arguments(__doc__)
    paths = [path for path in tree.files_of(root, {".h", ".hpp", ".cc"}) if not path.stem.endswith("-inl")]
    problems = []
    for path in paths:
        lacks, in_vain = check(root, path)
        if mends and (lacks or in_vain):
            text = "\n".join(mend(path, tree.lines_of(root, path), lacks, in_vain)) + "\n"
            (root / path).write_text(re.sub(r"\n{3,}", "\n\n", text), encoding="utf-8")
            lacks, in_vain = check(root, path)
        problems += [f"{path}: std::{name} is <{header}>'s, which is not included" for header, name in lacks.items()]
        problems += [f"{path}: <{header}> is included in vain" for header in in_vain]
    tree.finish("house.std_headers", len(paths), problems)


if __name__ == "__main__":
    main()
