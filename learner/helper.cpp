// Threads that help one another for a moment, without Python: see learner/helper_threads.py.
//
// A helper waits for work between any two steps, less than a millisecond apart. Waking a thread that
// sleeps takes a good part of that, so it looks again and again for a while, and gives its core to
// whoever else wants it between two looks; only then it sleeps.

#include <atomic>
#include <chrono>
#include <cstddef>
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace {

class Count {  // only goes up; somebody may wait for the next
 public:
  unsigned now() const { return value_.load(); }

  void next() {
    value_.fetch_add(1);
    if (asleep_.load()) syscall(SYS_futex, &value_, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
  }

  void await(unsigned before, std::chrono::nanoseconds patience) {
    const auto until = std::chrono::steady_clock::now() + patience;
    while (value_.load() == before) {
      if (std::chrono::steady_clock::now() < until) {
        sched_yield();
        continue;
      }
      asleep_.store(true);
      syscall(SYS_futex, &value_, FUTEX_WAIT_PRIVATE, before, nullptr, nullptr, 0);
      asleep_.store(false);
    }
  }

 private:
  std::atomic<unsigned> value_{0};
  std::atomic<bool> asleep_{false};
};

}  // namespace

extern "C" {

// A call of AOTInductorModelContainerRun, and what came of it.
struct Call {
  int (*run)(void*, void**, size_t, void**, size_t, void*, void*);
  void* container;
  void** inputs;
  size_t input_count;
  void** outputs;
  size_t output_count;
  int code;
};

struct Helper {
  Count begun, ended;
  Call* call = nullptr;  // none: to end
  std::chrono::nanoseconds patience;
};

Helper* helper_create(long patience_ns) {
  auto* helper = new Helper;
  helper->patience = std::chrono::nanoseconds(patience_ns);
  return helper;
}

static void make(Call* call) {
  call->code = call->run(call->container, call->inputs, call->input_count, call->outputs,
                         call->output_count, nullptr, nullptr);
}

// What a helping thread does until it is told to end.
void helper_serve(Helper* helper) {
  for (unsigned done = 0;; ++done) {
    helper->begun.await(done, helper->patience);
    Call* call = helper->call;
    if (call != nullptr) make(call);
    helper->ended.next();
    if (call == nullptr) return;
  }
}

// Makes all calls: the first here, each other by a helper. Returns when all are made.
void helpers_share(Helper** helpers, Call* calls, size_t count) {
  for (size_t i = 1; i < count; ++i) {
    helpers[i - 1]->call = &calls[i];
    helpers[i - 1]->begun.next();
  }
  make(&calls[0]);
  for (size_t i = 1; i < count; ++i) {
    Helper* helper = helpers[i - 1];
    helper->ended.await(helper->begun.now() - 1, helper->patience);
  }
}

void helper_end(Helper* helper) {
  helper->call = nullptr;
  helper->begun.next();
}
}
