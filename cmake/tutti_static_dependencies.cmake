# TUTTI_STATIC_DEPENDENCIES: fmt and libsodium are linked from archives, for what is to run where they are not installed.
find_library(TUTTI_SODIUM_ARCHIVE libsodium.a REQUIRED HINTS ${SODIUM_LIBDIR})
target_include_directories(tutti_third_party SYSTEM INTERFACE ${SODIUM_INCLUDE_DIRS})

# Debian has no archive of fmt. Then it is made of fmt's header, as fmt's own src/format.cc does.
find_library(TUTTI_FMT_ARCHIVE libfmt.a)
if(NOT TUTTI_FMT_ARCHIVE)
  file(CONFIGURE OUTPUT ${tutti_BINARY_DIR}/generated/fmt.cc CONTENT "#include <fmt/format-inl.h>
FMT_BEGIN_NAMESPACE
namespace detail {
template auto dragonbox::to_decimal(float) noexcept -> dragonbox::decimal_fp<float>;
template auto dragonbox::to_decimal(double) noexcept -> dragonbox::decimal_fp<double>;
template locale_ref::locale_ref(const std::locale&);
template auto locale_ref::get<std::locale>() const -> std::locale;
template auto thousands_sep_impl(locale_ref) -> thousands_sep_result<char>;
template auto decimal_point_impl(locale_ref) -> char;
}  // namespace detail
FMT_END_NAMESPACE
")
  add_library(tutti_fmt STATIC ${tutti_BINARY_DIR}/generated/fmt.cc)
  target_include_directories(tutti_fmt SYSTEM PRIVATE ${fmt_headers})
  target_link_libraries(tutti_third_party INTERFACE tutti_fmt)
  set(archives $<TARGET_FILE:tutti_fmt>)
else()
  target_link_libraries(tutti_third_party INTERFACE ${TUTTI_FMT_ARCHIVE})
  set(archives ${TUTTI_FMT_ARCHIVE})
endif()
target_link_libraries(tutti_third_party INTERFACE ${TUTTI_SODIUM_ARCHIVE})
file(GENERATE OUTPUT ${tutti_BINARY_DIR}/archives CONTENT "${archives};${TUTTI_SODIUM_ARCHIVE}")  # for the wheel
