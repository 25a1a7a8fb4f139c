# A seed must mean the same run in every process: addresses and hash seeds differ between two processes, the effects must not.
foreach(seed RANGE 1 12)
  execute_process(COMMAND ${SIM} --seed ${seed} --digest OUTPUT_VARIABLE one RESULT_VARIABLE failed_one)
  execute_process(COMMAND ${SIM} --seed ${seed} --digest OUTPUT_VARIABLE two RESULT_VARIABLE failed_two)
  if(failed_one OR failed_two OR NOT one STREQUAL two)
    message(FATAL_ERROR "seed ${seed} does not replay: ${one} and ${two}")
  endif()
endforeach()
