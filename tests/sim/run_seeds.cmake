# Runs SIM over as many seeds as campaign_size.cmake says.
include(${CMAKE_CURRENT_LIST_DIR}/campaign_size.cmake)
# And those above them that have found something.
foreach(seed ${ALSO})
  execute_process(COMMAND ${SIM} --seed ${seed} RESULT_VARIABLE failed)
  if(failed)
    message(FATAL_ERROR "seed ${seed} failed, see above")
  endif()
endforeach()
execute_process(COMMAND ${SIM} --seeds ${size} RESULT_VARIABLE failed)
if(failed)
  message(FATAL_ERROR "a seed failed, see above")
endif()
