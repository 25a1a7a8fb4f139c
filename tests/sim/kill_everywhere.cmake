# In each of SEEDS, for EVENTS events, kills each session before each event, in a run each; SIZE as in campaign_size.cmake: at most so many of
# these deaths a seed, 0: all.
include(${CMAKE_CURRENT_LIST_DIR}/campaign_size.cmake)
foreach(seed ${SEEDS})
  execute_process(COMMAND ${SIM} --seed ${seed} --events ${EVENTS} --kill-everywhere ${size} RESULT_VARIABLE failed)
  if(failed)
    message(FATAL_ERROR "a death in seed ${seed} broke something, see above")
  endif()
endforeach()
