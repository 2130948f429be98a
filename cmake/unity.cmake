# Sources that compile as one, where LOWTIDE_UNITY is on: most of their time goes to headers, which are then parsed once.
# The CPU kernels of a family of rules are one, too (rules.cmake).
option(LOWTIDE_UNITY "Compile groups of small files as one, in half the time; OFF compiles each file alone" ${LOWTIDE_FOR_WHEEL})

# lt_unite(<target> <group> <sources of this folder's CMakeLists.txt>...). Files whose names collide are not of one group;
# those of no group compile alone.
function(lt_unite target group)
  if(LOWTIDE_UNITY)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
    set_source_files_properties(${ARGN} PROPERTIES UNITY_GROUP ${group})
  endif()
endfunction()
