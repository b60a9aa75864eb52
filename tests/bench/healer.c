/* The limit: what a healer costs that does nothing but wake, read and write. cgroup v1.
 *
 * healer CLASS GROUP RULE...   CLASS: rr, nice or normal. GROUP: a directory of the devices hierarchy.
 * Prints "ready" and, whenever GROUP's devices.deny was written, gives back those of the RULEs that its devices.list
 * lacks. Ends with an exit status of 1 when something does not work.
 */
#include <err.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/fanotify.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#ifndef FAN_REPORT_FID /* Linux 5.1: names the file by its handle instead of opening it for each event */
#define FAN_REPORT_FID 0x200
#endif

static char events[4096], list[65536];

static int file(const char *group, const char *name, int flags)
{
	char path[4096];
	int fd;

	snprintf(path, sizeof(path), "%s/%s", group, name);
	fd = open(path, flags | O_CLOEXEC);
	if (fd < 0)
		err(1, "%s", path);
	return fd;
}

int main(int argc, char **argv)
{
	struct sched_param priority = {.sched_priority = 10};

	if (argc < 4)
		errx(1, "usage: healer rr|nice|normal GROUP RULE...");
	if (!strcmp(argv[1], "rr") && sched_setscheduler(0, SCHED_RR, &priority))
		err(1, "SCHED_RR");
	if (!strcmp(argv[1], "nice") && setpriority(PRIO_PROCESS, 0, -20))
		err(1, "nice -20");
	mlockall(MCL_CURRENT);
	int look = file(argv[2], "devices.list", O_RDONLY);
	int allow = file(argv[2], "devices.allow", O_WRONLY);
	int directory = open(argv[2], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	int wake = fanotify_init(FAN_CLASS_NOTIF | FAN_REPORT_FID | FAN_CLOEXEC, O_RDONLY);
	if (wake < 0 || fanotify_mark(wake, FAN_MARK_ADD, FAN_MODIFY, directory, "devices.deny"))
		err(1, "fanotify");
	puts("ready");
	fflush(stdout);
	while (read(wake, events, sizeof(events)) > 0) {
		ssize_t size = pread(look, list, sizeof(list) - 1, 0);
		if (size < 0)
			err(1, "devices.list");
		list[size] = 0;
		for (char **rule = argv + 3; *rule; rule++)
			if (!strstr(list, *rule) && write(allow, *rule, strlen(*rule)) < 0)
				err(1, "%s", *rule);
	}
	err(1, "fanotify: read");
}
