# Writes to `built_def` the lines of rules.def whose rules `wanted` names, those of their families included: what users
# call adam runs as adam_amsgrad, too. Refuses names that no line has.
function(lt_select_rules rules_def wanted built_def)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${rules_def}")
  file(STRINGS "${rules_def}" lines REGEX "^LT_(NORM_)?RULE\\(")
  set(known)
  foreach(line IN LISTS lines)
    string(REGEX REPLACE "^[A-Z_]*\\([0-9]+, ([a-z0-9]+)(_[a-z0-9_]+)?,.*" "\\1" family "${line}")
    list(APPEND known "${family}")
    if(family IN_LIST wanted)
      string(APPEND built "${line}\n")
    endif()
  endforeach()
  list(REMOVE_DUPLICATES known)
  foreach(name IN LISTS wanted)
    if(NOT name IN_LIST known)
      list(JOIN known ";" known)
      message(FATAL_ERROR "LOWTIDE_RULES: got '${name}', wanted some of: ${known}")
    endif()
  endforeach()
  file(CONFIGURE OUTPUT "${built_def}" CONTENT "// Generated from rules.def: the rules of LOWTIDE_RULES.
#ifndef LT_NORM_RULE
#define LT_NORM_RULE LT_RULE
#endif
${built}#undef LT_NORM_RULE
")
endfunction()

# One translation unit per optimizer rule, rules/step_<name><suffix>, generated from rules.def by a template of this
# folder: rules compile in parallel, and a new rule needs no edit here. Lines: LT_RULE(number, name, struct).
function(lt_generate_rule_sources rules_def template suffix out_sources)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${rules_def}")
  file(STRINGS "${rules_def}" lines REGEX "^[ \t]*LT_(NORM_)?RULE[ \t]*\\(")
  set(sources)
  foreach(line IN LISTS lines)
    if(NOT line MATCHES "RULE[ \t]*\\([ \t]*([0-9]+)[ \t]*,[ \t]*([a-z0-9_]+)[ \t]*,[ \t]*([A-Za-z0-9_]+)[ \t]*[,)]")
      message(FATAL_ERROR "${rules_def}: cannot read the line\n  ${line}\nwanted: LT_RULE(number, name, Struct)")
    endif()
    set(LT_RULE_NAME "${CMAKE_MATCH_2}")
    set(LT_RULE "${CMAKE_MATCH_3}")
    set(source "${CMAKE_CURRENT_BINARY_DIR}/rules/step_${LT_RULE_NAME}${suffix}")
    configure_file("${PROJECT_SOURCE_DIR}/cmake/${template}" "${source}" @ONLY)
    list(APPEND sources "${source}")
  endforeach()
  if(NOT sources)
    message(FATAL_ERROR "${rules_def}: no line LT_RULE(number, name, Struct) found")
  endif()
  set(${out_sources} "${sources}" PARENT_SCOPE)
endfunction()
