# The rooms that join hosts by a network library. Their headers only: the libraries are looked for at run time.

# tutti_network(ROOM MODULE "what its absence means"): transport/ROOM, with TUTTI_HAS_<ROOM> where pkg-config has MODULE.
function(tutti_network room module without)
  string(TOUPPER ${room} NAME)
  pkg_check_modules(${NAME} QUIET ${module})
  tutti_room(transport/${room})
  if(${NAME}_FOUND)
    target_compile_definitions(room_transport_${room} PRIVATE TUTTI_HAS_${NAME})
    target_include_directories(room_transport_${room} PRIVATE ${${NAME}_INCLUDE_DIRS})
    tutti_feature(${room} on "${${NAME}_MODULE_NAME} ${${NAME}_VERSION}, looked for at run time")
  else()
    tutti_feature(${room} off "${module} not found, ${without}")
  endif()
endfunction()

tutti_network(ucx ucx>=1.12 "TUTTI_NETWORK=ucx is refused")
tutti_network(verbs libibverbs>=1.11 "InfiniBand and RoCE are left to UCX, if TUTTI_NETWORK=ucx")
