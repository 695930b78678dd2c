// Programs for tests: each runs once in a connect(2), and `step` three times. Tests put statements in; INVALID is refused by the verifier,
// IDLE has nothing on a connect(2), NO_TAIL_CALLS leaves out the table of programs, which needs libbpf to be filled, and NO_LOOP what
// kernels have from 5.17 on.

#include <linux/bpf.h>
#include <linux/ptrace.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

char LICENSE[] SEC("license") = "GPL";

#ifdef IDLE
SEC("kprobe/__sys_bind")
int idle(void *context)
{
	return 0;
}
#else

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} calls SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 64);
	__type(key, __u64);
	__type(value, __u64);
} by_process SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} by_cpu SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 64);
	__type(key, __u64);
	__type(value, __u64);
} recent SEC(".maps");

// Larger than the events of a run.
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 18);
} events SEC(".maps");

volatile __u32 next = 1;
volatile __u32 planted;

#ifndef NO_TAIL_CALLS
int called_by_tail_call(void *context);
int a_name_longer_than_fifteen_characters(void *context);

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 2);
	__uint(key_size, sizeof(__u32));
	__array(values, int(void *));
} jumps SEC(".maps") = {
	.values = { (void *)&called_by_tail_call, (void *)&a_name_longer_than_fifteen_characters },
};

#else
#define bpf_tail_call(context, map, number)
#endif

static __noinline int count(void)
{
	__u32 key = 0;
	__u64 *value = bpf_map_lookup_elem(&calls, &key);

	if (!value)
		return 0;
	__sync_fetch_and_add(value, 1);
	return 1;
}

SEC("tracepoint/syscalls/sys_enter_connect")
int on_tracepoint(void *context)
{
	__u64 process = bpf_get_current_pid_tgid(), one = 1;

	bpf_map_update_elem(&by_process, &process, &one, BPF_ANY);
	return count();
}

SEC("fentry/__sys_connect")
int BPF_PROG(at_entry, int fd)
{
	count();
#ifdef INVALID
	return *(int *)(long)fd;
#endif
	return 0;
}

#ifndef NO_LOOP
static int step(__u32 number, void *context)
{
	__u32 key = 0;
	__u64 *value = bpf_map_lookup_elem(&by_cpu, &key);

	if (value)
		*value += number;
	return 0;
}

SEC("tp_btf/sys_enter")
int on_any_call(void *context)
{
	__u64 process = bpf_get_current_pid_tgid();

	bpf_loop(3, step, NULL, 0);
	bpf_map_update_elem(&recent, &process, &process, BPF_ANY);
	bpf_ringbuf_output(&events, &process, sizeof(process), 0);
	return 0;
}
#endif

SEC("fexit/__sys_connect")
int BPF_PROG(at_exit, int fd)
{
	return 0;
}

SEC("lsm/socket_connect")
int BPF_PROG(on_lsm, void *socket)
{
	return 0;
}

SEC("kretprobe/__sys_connect")
int on_return(void *context)
{
	return 0;
}

// By a number that the compiler knows, which the kernel makes a jump of, and by one that it does not know.
SEC("kprobe/__sys_connect")
int on_kprobe(void *context)
{
	bpf_tail_call(context, &jumps, 0);
	return count();
}

SEC("kprobe")
int called_by_tail_call(void *context)
{
	bpf_tail_call(context, &jumps, next);
	return count();
}

SEC("kprobe")
int a_name_longer_than_fifteen_characters(void *context)
{
	return count();
}
#endif
