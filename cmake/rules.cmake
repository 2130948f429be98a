# Reads rules.def, whose lines are LT_RULE(number, name, Struct), or LT_NORM_RULE for rules with norms and LT_SUM_RULE for
# rules with sums. Sets lt_rules (all names), lt_norm_rules, lt_sum_rules and lt_struct_of_<name>.
macro(lt_read_rules rules_def)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${rules_def}")
  file(STRINGS "${rules_def}" lt_lines REGEX "^[ \t]*LT_((NORM|SUM)_)?RULE[ \t]*\\(")
  set(lt_rules)
  set(lt_norm_rules)
  set(lt_sum_rules)
  foreach(lt_line IN LISTS lt_lines)
    if(NOT lt_line MATCHES "LT_((NORM|SUM)_)?RULE *\\( *[0-9]+ *, *([a-z0-9_]+) *, *([A-Za-z0-9_]+) *[,)]")
      message(FATAL_ERROR "${rules_def}: cannot read the line\n  ${lt_line}\nwanted: LT_RULE(number, name, Struct)")
    endif()
    list(APPEND lt_rules "${CMAKE_MATCH_3}")
    set(lt_struct_of_${CMAKE_MATCH_3} "${CMAKE_MATCH_4}")
    if(CMAKE_MATCH_2 STREQUAL "NORM")
      list(APPEND lt_norm_rules "${CMAKE_MATCH_3}")
    elseif(CMAKE_MATCH_2 STREQUAL "SUM")
      list(APPEND lt_sum_rules "${CMAKE_MATCH_3}")
    endif()
  endforeach()
  if(NOT lt_rules)
    message(FATAL_ERROR "${rules_def}: no line LT_RULE(number, name, Struct) found")
  endif()
endmacro()

# Refuses names in the list variable `option` that are not among the further arguments.
function(lt_require_names option)
  foreach(name IN LISTS ${option})
    if(NOT name IN_LIST ARGN)
      list(JOIN ARGN ";" known)
      message(FATAL_ERROR "${option}: got '${name}', wanted some of: ${known}")
    endif()
  endforeach()
endfunction()

# Writes to `built_def` the lines of rules.def whose families `wanted` names: adam also runs as adam_amsgrad, for
# example. Refuses unknown names.
function(lt_select_rules rules_def wanted built_def)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${rules_def}")
  file(STRINGS "${rules_def}" lines REGEX "^LT_((NORM|SUM)_)?RULE\\(")
  set(known)
  foreach(line IN LISTS lines)
    string(REGEX REPLACE "^[A-Z_]*\\([0-9]+, ([a-z0-9]+)(_[a-z0-9_]+)?,.*" "\\1" family "${line}")
    list(APPEND known "${family}")
    if(family IN_LIST wanted)
      string(APPEND built "${line}\n")
    endif()
  endforeach()
  list(REMOVE_DUPLICATES known)
  lt_require_names(LOWTIDE_RULES ${known})
  file(CONFIGURE OUTPUT "${built_def}" CONTENT "// Generated from rules.def: the rules of LOWTIDE_RULES.
#ifndef LT_NORM_RULE
#define LT_NORM_RULE LT_RULE
#endif
#ifndef LT_SUM_RULE
#define LT_SUM_RULE LT_RULE
#endif
${built}#undef LT_NORM_RULE
#undef LT_SUM_RULE
")
endfunction()

# Generates translation units of optimizer rules, rules/step_<name><suffix>, from rules.def and a template of this
# folder. They compile in parallel, and a new rule needs no edit here. There is one unit per rule or, with FAMILIES, one
# per family (adam with adam_amsgrad), whose headers are then parsed once.
function(lt_generate_rule_sources rules_def template suffix out_sources)
  cmake_parse_arguments(arg "FAMILIES" "" "" ${ARGN})
  lt_read_rules("${rules_def}")
  set(units)
  foreach(unit IN LISTS lt_rules)
    set(struct "${lt_struct_of_${unit}}")
    set(rule "RULE(${unit}, ${struct})")
    if(arg_FAMILIES)
      string(REGEX REPLACE "_.*" "" unit "${unit}")
    endif()
    list(APPEND units "${unit}")
    list(APPEND rules_of_${unit} "${rule}")
    set(struct_of_${unit} "${struct}")
  endforeach()
  list(REMOVE_DUPLICATES units)
  set(sources)
  foreach(unit IN LISTS units)
    list(JOIN rules_of_${unit} " " LT_RULES)
    set(LT_RULE_NAME "${unit}")
    set(LT_RULE "${struct_of_${unit}}")
    set(source "${CMAKE_CURRENT_BINARY_DIR}/rules/step_${unit}${suffix}")
    configure_file("${PROJECT_SOURCE_DIR}/cmake/${template}" "${source}" @ONLY)
    list(APPEND sources "${source}")
  endforeach()
  set(${out_sources} "${sources}" PARENT_SCOPE)
endfunction()
