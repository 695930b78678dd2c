// Compiled without -g: a program without BTF.
__attribute__((section("socket"), used)) int without_btf(void *context) { return 0; }
