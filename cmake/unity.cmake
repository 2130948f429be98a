# Compiles groups of sources as one if LOWTIDE_UNITY is on: most of their time goes to headers, which are then parsed
# once. It also compiles the CPU kernels of a family of rules as one (rules.cmake).
option(LOWTIDE_UNITY "Compile groups of small files as one, in half the time; OFF compiles each file alone" ${LOWTIDE_FOR_WHEEL})

# lt_unite(<target> <group> <sources of this folder's CMakeLists.txt>...). A group must not contain files whose names
# collide. Files without a group compile alone.
function(lt_unite target group)
  if(LOWTIDE_UNITY)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
    set_source_files_properties(${ARGN} PROPERTIES UNITY_GROUP ${group})
  endif()
endfunction()
