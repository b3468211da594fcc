/* Process 1 of a pod's sandbox: holds its namespaces, reaps what is left to it, ends when asked. */
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static void end(int signal_number) {
  (void)signal_number;
  _exit(0);
}

static void reap(int signal_number) {
  (void)signal_number;
  while (waitpid(-1, 0, WNOHANG) > 0)
    ;
}

int main(void) {
  struct sigaction ending = {.sa_handler = end}, reaping = {.sa_handler = reap, .sa_flags = SA_NOCLDSTOP};
  if (sigaction(SIGINT, &ending, 0) || sigaction(SIGTERM, &ending, 0) || sigaction(SIGCHLD, &reaping, 0))
    return 1;
  for (;;)
    pause();
}
