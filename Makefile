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
static dist reproduce audit: STATIC_TARGET := $(TARGET)

.PHONY: all test check demo install static dist reproduce audit advisories bench clean
.NOTPARALLEL:

all:
	$(CARGO) build --release --locked

test:
	$(CARGO) test --locked
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
# names of this machine's folders, and differ from the same build elsewhere.
static:
	CARGO_ENCODED_RUSTFLAGS="$$(printf '%s\037%s\037%s' -Ctarget-feature=+crt-static \
		"--remap-path-prefix=$${CARGO_HOME:-$$HOME/.cargo}=/cargo" \
		"--remap-path-prefix=$(CURDIR)=/mino")" \
		$(CARGO) build --release --locked --bin mino --target $(STATIC_TARGET)
	@command -v readelf >/dev/null || { echo "static: readelf is needed to check the result" >&2; exit 1; }
	@if readelf -lWd $(STATIC) | grep -E 'INTERP|\(NEEDED\)'; \
		then echo "static: $(STATIC) is not static" >&2; exit 1; fi
	@echo "static: $(STATIC), $$(wc -c <$(STATIC)) bytes, no loader and no shared library"
	@sha256sum $(STATIC)

# The same bytes from the same sources: sorted, no times, no owners.
dist: static
	rm -rf dist/$(NAME)
	install -d dist/$(NAME)
	install -m 755 $(STATIC) dist/$(NAME)/mino
	install -m 644 README.md LICENSE dist/$(NAME)
	cd dist/$(NAME) && sha256sum mino README.md LICENSE >SHA256SUMS && chmod 644 SHA256SUMS
	tar --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner --mode=go-w --format=ustar \
		-C dist -cf dist/$(NAME).tar $(NAME)
	gzip -9nf dist/$(NAME).tar
	rm -r dist/$(NAME)
	@sha256sum dist/$(NAME).tar.gz

# Of what is committed. Crates come from copies of this machine's download cache, or from the registry.
reproduce:
	@set -eu; tmp=$$(mktemp -d); trap 'rm -rf "$$tmp"' EXIT; trap 'exit 1' HUP INT TERM; \
	from=$${CARGO_HOME:-$$HOME/.cargo}; \
	for side in one another/and/deeper; do \
		mkdir -p "$$tmp/$$side/source" "$$tmp/$$side/home/registry"; \
		git archive HEAD | tar -x -C "$$tmp/$$side/source"; \
		for part in config.toml registry/index registry/cache; do \
			if [ -e "$$from/$$part" ]; then cp -R "$$from/$$part" "$$tmp/$$side/home/$$part"; fi; \
		done; \
		env -u CARGO_TARGET_DIR CARGO_HOME="$$tmp/$$side/home" \
			$(MAKE) -C "$$tmp/$$side/source" static TARGET=$(STATIC_TARGET); \
	done; \
	built=source/target/$(STATIC_TARGET)/release/mino; \
	cmp "$$tmp/one/$$built" "$$tmp/another/and/deeper/$$built"; \
	echo "reproduce: both are the same, byte for byte"

advisories:
	@if command -v cargo-audit >/dev/null; then $(CARGO) audit; \
	elif command -v cargo-deny >/dev/null; then $(CARGO) deny check advisories; \
	else echo "advisories: SKIPPED, neither cargo-audit nor cargo-deny is installed"; fi

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

bench:
	$(CARGO) run --release --locked --example bench

clean:
	$(CARGO) clean
	rm -rf dist
