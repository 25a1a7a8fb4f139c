# Sets `size`: SIZE, FULL in a long campaign, or what the environment's VARIABLE says. Read when the test runs.
set(size ${SIZE})
if(DEFINED ENV{${VARIABLE}})
  set(size $ENV{${VARIABLE}})
elseif("$ENV{KVIST_CAMPAIGN}" STREQUAL "full")
  set(size ${FULL})
endif()
