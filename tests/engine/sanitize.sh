#!/bin/sh
# Builds the kernels with AddressSanitizer and UndefinedBehaviorSanitizer into a temporary folder, and runs the tests of
# the packed engine with them, or those that are named:
#
#   tests/engine/sanitize.sh [tests/engine/test_packed_weight.py ...]
#
# or a drill: tests/engine/sanitize.sh tests/drills/run.py operators --tries 1000
#
# Wants g++ and an environment in which the tests run; PYTHON names another interpreter than python.
set -eu
cd "$(dirname "$0")/../.."
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
native=src/selfish_rnn
flags="-std=c++17 -O1 -g -fPIC -fopenmp -fno-math-errno -ffp-contract=fast -Wno-psabi -fno-omit-frame-pointer
       -fsanitize=address,undefined -fno-sanitize-recover=undefined"

compile() { # source, flags of its own
  source=$1
  shift
  # shellcheck disable=SC2086
  g++ $flags "$@" -c "$native/$source.cpp" -o "$folder/$(echo "$source" | tr / -).o"
}

compile engine/kernels/packing
compile engine/kernels/checking
compile engine/kernels/kernels_portable
compile engine/kernels/bf16_index
compile engine/kernels/bf16_portable
compile runtime/kernels/int8_portable -ffp-contract=off
if [ "$(uname -m)" = x86_64 ]; then
  compile engine/kernels/dispatch -DSELFISH_X86
  compile engine/kernels/kernels_avx2 -mavx2 -mfma
  avx512="-mavx2 -mfma -mavx512f -mavx512vl -mavx512dq -mavx512bw"
  # shellcheck disable=SC2086
  compile engine/kernels/kernels_avx512 $avx512
  compile engine/kernels/bf16_dispatch -DSELFISH_X86
  # shellcheck disable=SC2086
  compile engine/kernels/bf16_avx512 $avx512 -mavx512bf16
  compile runtime/kernels/dispatch -DSELFISH_X86
  compile runtime/kernels/int8_avx2 -ffp-contract=off -mavx2 -mfma
  compile runtime/kernels/int8_avx_vnni -ffp-contract=off -mavx2 -mfma -mavxvnni
  # shellcheck disable=SC2086
  compile runtime/kernels/int8_avx512_vnni -ffp-contract=off $avx512 -mavx512vnni
  # shellcheck disable=SC2086
  compile runtime/kernels/int8_avx512_vbmi -ffp-contract=off $avx512 -mavx512vnni -mavx512vbmi -mavx512vbmi2
else
  compile engine/kernels/dispatch
  compile engine/kernels/bf16_dispatch
  compile runtime/kernels/dispatch
fi
g++ -shared -fopenmp -fsanitize=address,undefined "$folder"/*.o -o "$folder/_kernels.so"

case "${1:-}" in
  */run.py) ;;
  "") set -- -m pytest -q -p no:cacheprovider tests/engine ;;
  *) set -- -m pytest -q -p no:cacheprovider "$@" ;;
esac
LD_PRELOAD="$(g++ -print-file-name=libasan.so) $(g++ -print-file-name=libubsan.so) $(g++ -print-file-name=libstdc++.so)" \
  ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 OMP_NUM_THREADS=1 \
  SELFISH_RNN_KERNELS="$folder/_kernels.so" "${PYTHON:-python}" "$@"
