// What a BPF agent does at its start: loads the programs of an object, attaches them, and waits. A program whose section does not say
// where it belongs is called by others alone.

#include <bpf/libbpf.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	struct bpf_object *object = argc > 1 ? bpf_object__open_file(argv[1], NULL) : NULL;
	struct bpf_program *program;

	if (!object || bpf_object__load(object))
		return 1;
	bpf_object__for_each_program(program, object) {
		if (!strchr(bpf_program__section_name(program), '/'))
			continue;
		if (!bpf_program__attach(program)) {
			printf("cannot attach %s\n", bpf_program__name(program));
			return 1;
		}
	}
	pause();
	return 0;
}
