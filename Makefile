# make            the release build
# make test       every test, and the demonstration without a person
# make check      what has to be true before a change is taken: format, lints, tests, advisories, static build
# make demo       the real program with a scripted model: no key, no network
# make install    into $(DESTDIR)$(PREFIX)/bin
# make static     one file to copy; TARGET= picks another target than the one found
# make dist       a tarball of that file
# make reproduce  two builds in different places, compared byte by byte
# make audit      what an auditor asks first: dependencies, licences, advisories, unsafe code, sizes, limits
# make bench      measurements beside their floors
# make clean

SHELL = /bin/sh
CARGO ?= cargo
PREFIX ?= /usr/local
BUILD := $(or $(CARGO_TARGET_DIR),target)
VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)

# Looked up where they are used and not at each call of make.
HOST = $(shell rustc -vV | sed -n 's/^host: //p')
MUSL = $(subst -gnu,-musl,$(HOST))
# musl where Rust has it and its C compiler (the cryptography is partly C) is there too.
TARGET ?= $(shell [ -d "$$(rustc --print sysroot)/lib/rustlib/$(MUSL)" ] \
	&& command -v musl-gcc >/dev/null && echo $(MUSL) || echo $(HOST))
STATIC = $(BUILD)/$(STATIC_TARGET)/release/mino
NAME = mino-$(VERSION)-$(STATIC_TARGET)
DIST ?= dist
static dist reproduce audit bench: STATIC_TARGET := $(TARGET)

.PHONY: all test check demo install static dist reproduce audit advisories bench clean
.NOTPARALLEL:

all:
	$(CARGO) build --release --locked

# A build server may run this with signals ignored that the tests send; they are to be heard.
HEARD = $(shell env --default-signal=INT true 2>/dev/null && echo env --default-signal=HUP,INT,QUIT,TERM)

test:
	$(HEARD) $(CARGO) test --locked
	$(CARGO) run --quiet --locked --example demo </dev/null

check:
	$(CARGO) fmt --check
	$(CARGO) clippy --locked --all-targets -- -D warnings
	$(MAKE) test
	$(MAKE) advisories
	$(MAKE) static

# Cargo builds an example without the programs that it starts.
demo:
	@echo "Building mino and its scripted model; the first time this takes a minute or two."
	@$(CARGO) build --quiet --locked --bin mino --example tty-shim --example demo
	@$(CARGO) run --quiet --locked --example demo

# Builds only where a source is newer, so that `sudo make install` after `make` needs no Rust.
$(BUILD)/release/mino: Cargo.toml Cargo.lock $(shell find src -name '*.rs')
	$(CARGO) build --release --locked
	@touch $@

install: $(BUILD)/release/mino
	install -d "$(DESTDIR)$(PREFIX)/bin"
	install -m 755 $(BUILD)/release/mino "$(DESTDIR)$(PREFIX)/bin/mino"

# Separated by U+001F, since a path may hold a blank. Without the remapping the file would hold the
# names of this machine's folders, and differ from the same build elsewhere; those of the standard
# library are rustc's own names for it wherever its source is not installed.
STATIC_FLAGS = CARGO_ENCODED_RUSTFLAGS="$$(printf '%s\037%s\037%s\037%s%s' -Ctarget-feature=+crt-static \
	"--remap-path-prefix=$${CARGO_HOME:-$$HOME/.cargo}=/cargo" \
	"--remap-path-prefix=$(CURDIR)=/mino" \
	"--remap-path-prefix=$$(rustc --print sysroot)/lib/rustlib/src/rust=/rustc/$(COMMIT)" \
	"$$($(PACKED))")"
# 100 KB less, and a quicker start. glibc understands it from 2.36 on, also within a static program.
PACKED = case $(STATIC_TARGET) in *-gnu) getconf GNU_LIBC_VERSION | awk '{ split($$2, v, "."); \
	if (v[1] * 1000 + v[2] >= 2036) printf "\037-Clink-arg=-Wl,-z,pack-relative-relocs" }';; esac
COMMIT = $(shell rustc -vV | sed -n 's/^commit-hash: //p')

static:
	$(STATIC_FLAGS) $(CARGO) build --release --locked --bin mino --target $(STATIC_TARGET)
	@$(MAKE) --silent --no-print-directory $(BUILD)/static-check
	@$(BUILD)/static-check $(STATIC)
	@sha256sum $(STATIC)

# A reader of our own, since readelf is missing on many a machine.
$(BUILD)/static-check: tests/bench/static_check.rs
	rustc --edition 2024 -o $@ $<

# The same bytes from the same sources: sorted, no times, no owners.
dist: static
	rm -rf "$(DIST)/$(NAME)"
	install -d "$(DIST)/$(NAME)"
	install -m 755 $(STATIC) "$(DIST)/$(NAME)/mino"
	install -m 644 README.md LICENSE "$(DIST)/$(NAME)"
	cd "$(DIST)/$(NAME)" && sha256sum mino README.md LICENSE >SHA256SUMS && chmod 644 SHA256SUMS
	tar --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner --mode=go-w --format=ustar \
		-C "$(DIST)" -cf "$(DIST)/$(NAME).tar" $(NAME)
	gzip -9nf "$(DIST)/$(NAME).tar"
	rm -r "$(DIST)/$(NAME)"
	@sha256sum "$(DIST)/$(NAME).tar.gz"

# Of what is committed: in two folders, each with a cargo home and a temporary folder of its own, and
# in another time zone, language and umask. Crates come from copies of this machine's download cache,
# or from the registry.
reproduce:
	@set -eu; tmp=$$(mktemp -d); trap 'rm -rf "$$tmp"' EXIT; trap 'exit 1' HUP INT TERM; \
	from=$${CARGO_HOME:-$$HOME/.cargo}; commit=$$(git rev-parse HEAD); \
	for side in one another/and/deeper; do \
		mkdir -p "$$tmp/$$side/source" "$$tmp/$$side/home/registry" "$$tmp/$$side/tmp"; \
		git archive $$commit | tar -x -C "$$tmp/$$side/source"; \
		for part in config.toml registry/index registry/cache; do \
			if [ -e "$$from/$$part" ]; then cp -R "$$from/$$part" "$$tmp/$$side/home/$$part"; fi; \
		done; \
		case $$side in one) zone=UTC language=C mask=022;; *) zone=Asia/Tokyo language=C.UTF-8 mask=077;; esac; \
		(umask $$mask; env -u CARGO_TARGET_DIR CARGO_HOME="$$tmp/$$side/home" TMPDIR="$$tmp/$$side/tmp" \
			TZ=$$zone LC_ALL=$$language \
			$(MAKE) -C "$$tmp/$$side/source" dist TARGET=$(STATIC_TARGET) DIST=dist); \
	done; \
	cd "$$tmp"; \
	for file in target/$(STATIC_TARGET)/release/mino dist/$(NAME).tar.gz; do \
		cmp "one/source/$$file" "another/and/deeper/source/$$file"; \
	done; \
	if grep -aqF "$$tmp" "one/source/target/$(STATIC_TARGET)/release/mino"; \
		then echo "reproduce: the program names the folder it was built in" >&2; exit 1; fi; \
	echo "reproduce: program and tarball are the same twice, byte for byte"

advisories:
	@if command -v cargo-audit >/dev/null; then $(CARGO) audit; \
	elif command -v cargo-deny >/dev/null; then $(CARGO) deny check advisories; \
	else echo "advisories: SKIPPED, neither cargo-audit nor cargo-deny is installed;" \
		"cargo install --locked cargo-audit brings one"; fi

audit:
	@echo "== Dependencies of the program, with licences"
	@$(CARGO) tree --locked --edges normal --target $(STATIC_TARGET) --format '{p} {l}'
	@echo
	@echo "== Advisories"
	@$(MAKE) --no-print-directory advisories
	@echo
	@echo "== Unsafe code, each piece under its reason"
	@find src -name '*.rs' | sort | xargs awk "$$LIST_UNSAFE"
	@echo
	@echo "== Lines of each module: all, and without tests, comments and blanks"
	@find src -name '*.rs' | sort | xargs awk "$$COUNT_LINES"
	@echo
	@echo "== Limits (src/limits.rs says why)"
	@sed -n 's/^pub const \([A-Z_]*\): [a-z0-9]* = \(.*\);$$/\1 \2/p' src/limits.rs \
		| sed -E ':a; s/([0-9])_([0-9])/\1\2/; ta; s/ as [a-z0-9]+//g' \
		| while read -r name value; do KIB=1024; MIB=1048576; \
			eval "$$name=\$$(( $$value ))"; eval "value=\$$$$name"; \
			printf '%-24s %12d\n' "$$name" "$$value"; done
	@! grep '^pub const' src/limits.rs | grep -v '^pub const [A-Z_]*: [a-z0-9]* = .*;$$'

define LIST_UNSAFE
FNR == 1 { reason = "" }
/^ *\/\// { if (/SAFETY:/) reason = $$0; else if (reason) reason = reason "\n" $$0; next }
/unsafe (\{|fn|impl|extern)/ {
	count++
	if (!reason) { missing++; reason = "    NO SAFETY LINE" }
	print FILENAME ":" FNR; print reason; print
}
/[;}]$$|^$$/ || /unsafe \{/ { reason = "" }
END { print count + 0 " in all, " missing + 0 " without a reason"; exit missing > 0 }
endef
export LIST_UNSAFE

define COUNT_LINES
FNR == 1 { test = 0; order[++files] = FILENAME }
/^#\[cfg\(test\)\]/ { test = 1 }
{ all[FILENAME]++; total++ }
!test && !/^ *\/\// && !/^ *$$/ { own[FILENAME]++; code++ }
END {
	for (i = 1; i <= files; i++) printf "%6d %6d  %s\n", all[order[i]], own[order[i]], order[i]
	printf "%6d %6d  in all\n", total, code
}
endef
export COUNT_LINES

# As it is shipped. Files go where the build is, since a folder for temporary files may be in memory,
# where a sync costs nothing.
bench:
	$(STATIC_FLAGS) $(CARGO) build --release --locked --target $(STATIC_TARGET) --bin mino \
		--example bench --example bench-floor --example bench-empty --example tty-shim
	@mkdir -p $(BUILD)/tmp
	@TMPDIR="$(abspath $(BUILD))/tmp" $(BUILD)/$(STATIC_TARGET)/release/examples/bench

clean:
	$(CARGO) clean
	rm -rf dist
