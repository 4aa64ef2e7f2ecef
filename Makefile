# Two commands matter to a new user: `make demo` and `make test`. Each target sets up what is missing.
PYTHON := .venv/bin/python

.PHONY: all setup build wheel demo test torture orders crowd bench lint format sanitize tsan fuzz clean

all: build

setup:
	@tools/setup

# The release binary at build/bin/syncline, the unit tests beside it, and the Python package in .venv.
build: setup
	@mkdir -p build
	@cmake --preset release > build/configure.log 2>&1 || { cat build/configure.log; exit 1; }
	@cmake --build --preset release
	@tools/install_python

demo: build
	@$(PYTHON) examples/smollm2/demo.py --out build/demo

test: build
	@$(PYTHON) tools/run_tests.py

# N cases of faults, by chance from SEED (tests/torture). A failed one prints how to play it again.
torture: build
	@build/bin/torture --cases $(or $(N),20000) --seed $(or $(SEED),$$(date +%s))

# 500 requests at once for two minutes, while weights are updated in pauses of each mode.
crowd: build
	@$(PYTHON) tests/trainers/crowd.py

# N short lives of an engine with requests in any order, by chance from SEED (tests/orders).
orders: build
	@build/bin/orders --cases $(or $(N),10000) --seed $(or $(SEED),$$(date +%s))

# ONLY=regex runs some of the lines.
bench: build
	@$(PYTHON) bench/run.py $(if $(ONLY),--only '$(ONLY)')

lint: build
	@tools/lint

format: setup
	@tools/lint --fix

# The C++ tests under AddressSanitizer and UndefinedBehaviorSanitizer.
sanitize: setup
	@cmake --preset asan-ubsan > /dev/null
	@cmake --build --preset asan-ubsan
	@$(PYTHON) tools/run_tests.py --build build/asan-ubsan --only-cpp

tsan: setup
	@cmake --preset tsan > /dev/null
	@cmake --build --preset tsan
	@$(PYTHON) tools/run_tests.py --build build/tsan --only-cpp

# Needs clang 19. SECONDS is for each target; TARGET=json runs one of fuzz/.
fuzz: SECONDS := 60
fuzz: setup
	@$(PYTHON) tools/run_fuzzers.py --seconds $(SECONDS) $(if $(TARGET),--target $(TARGET))

clean:
	rm -rf build
