#!/usr/bin/env bash
# The GPU check: ./run.sh [OUTPUT]. It needs an NVIDIA driver, bash and what lies beside it, no network;
# nvcc, cuobjdump, compute-sanitizer and cuBLASLt are used where they are. JSON lines go to OUTPUT, by
# default gpu-check.jsonl, and to the screen; what tools say goes to logs/. It touches no clocks and no
# settings of the device, and ends within TANDEM_GPUCHECK_SECONDS, by default 300.
set -uo pipefail
shopt -s nullglob

out=$(realpath -m "${1:-gpu-check.jsonl}")
cd "$(dirname "$0")" || exit 1
here=$PWD
begin=$SECONDS
budget=${TANDEM_GPUCHECK_SECONDS:-300}
failed=0
rm -rf logs && mkdir -p logs && : >"$out" || exit 1
export CUDA_CACHE_PATH=$here/jit-cache CUDA_CACHE_MAXSIZE=1073741824

say() { printf '%s\n' "$1" | tee -a "$out"; }

# text makes standard input fit for a string of JSON.
text() { tr '\n\t' '  ' | tr -cd '\40-\176' | sed 's/\\/\\\\/g; s/"/\\"/g' | cut -c1-400; }

# result NAME STATUS SECONDS NOTE
result() {
	[ "$2" = failed ] && failed=1
	say "{\"step\":\"run\",\"name\":\"$1\",\"status\":\"$2\",\"seconds\":$3,\"note\":\"$(printf %s "$4" | text)\"}"
}

# timed NAME LIMIT COMMAND...: runs it in what time is left, and sets status and took. Its lines of
# JSON go to the output, the rest to logs/NAME.
timed() {
	local log=logs/${1// /-} left=$((budget - (SECONDS - begin) - 2)) limit=$2
	name=$1 start=$SECONDS
	[ "$limit" -gt "$left" ] && limit=$left
	if [ "$limit" -lt 1 ]; then
		status=skipped note="no time is left" took=0
		return
	fi
	shift 2
	timeout -k 3 "$limit" "$@" 2>"$log.err" | tee "$log.out" | grep --line-buffered '^{' | tee -a "$out"
	local rc=${PIPESTATUS[0]}
	took=$((SECONDS - start)) status=ok note=
	[ "$rc" -eq 0 ] && return
	status=failed
	if [ "$rc" -eq 124 ] || [ "$rc" -eq 137 ]; then
		note="ended after its $limit s; "
	fi
	note+=$(cat "$log.out" "$log.err" | grep -v '^{' | grep -v '^[[:space:]]*$' | grep -v -- '--- PASS' | grep -v '=== RUN' | tail -4)
}

# step NAME LIMIT COMMAND...: one step of the check.
step() {
	timed "$@"
	result "$name" "$status" "$took" "$note"
	[ "$status" = ok ]
}

# tests NAME LIMIT FOLDER BINARY [ARGUMENT...]: a test program that runs in FOLDER; its note counts.
tests() {
	local name=$1 limit=$2 folder=$3 binary=$4
	shift 4
	timed "$name" "$limit" env -C "$folder" TANDEM_GPU=1 "$here/tests/$binary" -test.v -test.timeout "${limit}s" "$@"
	local log=logs/${name// /-}.out
	if [ "$status" != skipped ]; then
		grep -q -- '--- PASS' "$log" || status=failed # nothing ran
		note="$(grep -c -- '--- PASS' "$log") passed, $(grep -c -- '--- FAIL' "$log") failed. $note"
		[ "$status" = ok ] || note+=" $(grep -A2 -- '--- FAIL' "$log" | head -20)"
	fi
	result "$name" "$status" "$took" "$note"
	[ "$status" = ok ]
}

tool() {
	local found=(/usr/local/cuda*/bin/"$1")
	command -v "$1" && return
	[ ${#found[@]} -eq 0 ] || printf %s "${found[-1]}"
}

# library VARIABLE NAME VERSION...: names a library that no linker may know of, such as one of pip's.
library() {
	local variable=$1 name=$2 folders dir found
	shift 2
	[ -n "${!variable:-}" ] && return
	folders=$(python3 -c 'import site, sysconfig
for d in {sysconfig.get_paths()["purelib"], site.getusersitepackages(), *site.getsitepackages()}: print(d)' 2>/dev/null)
	for version in "$@"; do
		found=$(ldconfig -p 2>/dev/null | awk -v n="$name.so.$version" '$1 == n { print $NF; exit }')
		for dir in $folders; do
			for f in "$dir"/nvidia/*/lib/"$name.so.$version"; do found=${found:-$f}; done
		done
		for f in /usr/local/cuda*/lib64/"$name.so.$version" /usr/local/cuda*/targets/*/lib/"$name.so.$version" \
			"${CONDA_PREFIX:-/nowhere}"/lib/"$name.so.$version"; do found=${found:-$f}; done
		if [ -n "$found" ]; then
			export "$variable=$found"
			return
		fi
	done
}

# --- the machine ---------------------------------------------------------------------------------

library TANDEM_CUBLASLT libcublasLt 13 12 11
library TANDEM_NCCL libnccl 2
if smi=$(tool nvidia-smi) && [ -n "$smi" ]; then
	timeout 5 "$smi" -L >logs/nvidia-smi.out 2>&1
	timeout 5 "$smi" --query-gpu=name,driver_version,memory.free,memory.total,clocks.max.sm,compute_cap --format=csv >>logs/nvidia-smi.out 2>&1
	result nvidia-smi ok 0 "$(cat logs/nvidia-smi.out)"
else
	result nvidia-smi skipped 0 "not here"
fi
printf '%s\n' "${TANDEM_CUBLASLT:-no cuBLASLt}" "${TANDEM_NCCL:-no NCCL}" >logs/libraries.out
result libraries ok 0 "cuBLASLt: $(basename "${TANDEM_CUBLASLT:-none}"), NCCL: $(basename "${TANDEM_NCCL:-none}")"
step machine 15 ./gpucheck machine || exit 1
capability=90
if grep -q '"emulator":true' "$out"; then
	export TANDEM_GPUCHECK_TINY=1
	emulator=1
	echo "THIS IS AN EMULATOR: the check shows that its steps run; no time that it prints means anything." >&2
else
	emulator=
	capability=$(sed -n 's/.*compute capability \([0-9]*\)\.\([0-9]\).*/\1\2/p' "$out" | head -1)
fi
target=80
[ "$capability" -ge 90 ] && target=90

# --- is it right? --------------------------------------------------------------------------------

right=1
TANDEM_TARGET=$target tests cases 60 tests cases.test -test.run TestCases || right=0
if [ "$right" = 0 ] && [ -z "${TANDEM_GPUCHECK_GO_ON:-}" ]; then
	echo "The kernels are wrong here, so their times are not worth the minutes; TANDEM_GPUCHECK_GO_ON=1 measures all the same." >&2
	exit 1
fi
# The kernels of the driver's tests are not in the emulator of the engine's.
[ -n "$emulator" ] || tests driver 30 tests/gpu gpu.test
tests products 30 tests/gemm gemm.test
models=TestCUDA
[ -n "$emulator" ] && models=TestCUDAPicks
tests models 40 tests tinymodel.test -test.run "$models"

# --- is it fast? ---------------------------------------------------------------------------------

step pieces 60 ./gpucheck measure
step engine 90 ./gpucheck engine
step serve 60 ./gpucheck serve -bin "$here" -limit 55s

# --- other forms of the code -----------------------------------------------------------------------

if [ "$target" -gt 80 ] && [ -z "$emulator" ]; then
	TANDEM_TARGET=80 tests "cases, compute_80" 30 tests cases.test -test.run TestCases
fi
# compile makes cubins of the sources beside this script.
compile() {
	rm -rf cubins && mkdir cubins
	printf '%s\n' sources/*.cu | xargs -P "$(nproc)" -I{} sh -c \
		'"$0" -O3 -std=c++17 -arch=sm_'"$capability"' -cubin -o "cubins/$(basename "$1" .cu).cubin" "$1"' "$1" {}
}
export -f compile
export capability
nvcc=$(tool nvcc)
if [ -z "$nvcc" ] || [ -n "$emulator" ]; then
	result "compile cubins" skipped 0 "no nvcc, or an emulator, which runs the sources"
elif step "compile cubins" 60 bash -c 'compile "$0"' "$nvcc"; then
	TANDEM_CUBINS=$here/cubins tests "cases, cubin" 30 tests cases.test -test.run TestCases
	if dump=$(tool cuobjdump) && [ -n "$dump" ]; then
		for f in cubins/*.cubin; do timeout 10 "$dump" --dump-sass "$f"; done >logs/sass.out 2>logs/sass.err
		for i in HMMA HGMMA LDL STL; do
			say "{\"step\":\"code\",\"name\":\"$i instructions in the cubins\",\"note\":\"$(grep -cE "[[:space:]]$i[.[:space:]]" logs/sass.out)\"}"
		done
	fi
fi

sanitizer=$(tool compute-sanitizer)
for kind in memcheck racecheck; do
	if [ -z "$sanitizer" ] || [ -n "$emulator" ]; then
		result "$kind" skipped 0 "no compute-sanitizer, or an emulator, which checks by itself"
		continue
	fi
	TANDEM_GPU=1 TANDEM_TARGET=$target timed "$kind" 30 "$sanitizer" --tool "$kind" --error-exitcode 9 \
		tests/cases.test -test.run 'TestCases/.*/(fill|norm|argmax|blocks|act_56|embed_q|decode_bf16|gemv_q4|prefill_bf16|gemm|moe)'
	# That it does not start, or has no time, is no failure of ours: an error that it counts is.
	if [ "$status" = failed ] && ! grep -qE 'SUMMARY: [1-9]' "logs/$kind.out" "logs/$kind.err"; then
		status=skipped
	fi
	result "$kind" "$status" "$took" "$note"
done

result all "$([ "$failed" = 0 ] && echo ok || echo failed)" "$((SECONDS - begin))" "${emulator:+an emulator: times mean nothing}"
exit "$failed"
