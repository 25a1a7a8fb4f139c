# Writes a fatbin as an array that image.cc knows: -DBIN2C=... -DFATBIN=... -DIMAGE=...
execute_process(COMMAND ${BIN2C} --const --name kvist_kernel_image ${FATBIN} OUTPUT_VARIABLE array COMMAND_ERROR_IS_FATAL ANY)
string(REPLACE "const unsigned char kvist" "alignas(16) const unsigned char kvist" array "${array}")
file(SIZE ${FATBIN} bytes)
file(WRITE ${IMAGE} "// Made by embed.cmake.
extern \"C\" {
extern const unsigned char kvist_kernel_image[];
extern const unsigned long kvist_kernel_image_bytes;
const unsigned long kvist_kernel_image_bytes = ${bytes};
}
${array}")
