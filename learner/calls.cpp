// Calls of compiled libraries without Python, alone or shared with helping threads: see
// learner/calls.py and learner/helper_threads.py.
//
// A helper waits for work between any two steps, less than a millisecond apart. Waking a thread that
// sleeps takes a good part of that, so it looks again and again for a while, and gives its core to
// whoever else wants it between two looks; only then it sleeps.

#include <atomic>
#include <chrono>
#include <cstddef>
#include <thread>
#include <vector>

namespace {

class Count {  // only goes up; somebody may wait for the next
 public:
  unsigned now() const { return value_.load(); }

  void next() {
    value_.fetch_add(1);
    value_.notify_one();
  }

  void await(unsigned before, std::chrono::nanoseconds patience) const {
    const auto until = std::chrono::steady_clock::now() + patience;
    while (value_.load() == before && std::chrono::steady_clock::now() < until) {
      std::this_thread::yield();
    }
    value_.wait(before);
  }

 private:
  std::atomic<unsigned> value_{0};
};

}  // namespace

extern "C" {

// A call of AOTInductorModelContainerRun, and what came of it.
struct Call {
  int (*run)(void*, void**, size_t, void**, size_t, void*, void*);
  int (*new_handle)(void*, void**);  // another one for the same tensor
  void* container;
  void** kept;  // handles that the library does not get: it is given others for the same tensors
  size_t kept_count;
  void** given;  // handles that are the library's from then on
  size_t given_count;
  void** outputs;
  size_t output_count;
  int code;
};

void call_make(Call* call) {
  std::vector<void*> inputs(call->kept_count);
  for (size_t i = 0; i < call->kept_count; ++i) {
    call->code = call->new_handle(call->kept[i], &inputs[i]);
    if (call->code != 0) return;
  }
  inputs.insert(inputs.end(), call->given, call->given + call->given_count);
  call->code = call->run(call->container, inputs.data(), inputs.size(), call->outputs,
                         call->output_count, nullptr, nullptr);
}

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

// What a helping thread does until it is told to end.
void helper_serve(Helper* helper) {
  for (unsigned done = 0;; ++done) {
    helper->begun.await(done, helper->patience);
    Call* call = helper->call;
    if (call != nullptr) call_make(call);
    helper->ended.next();
    if (call == nullptr) return;
  }
}

// Makes all calls: the first here, each other by a helper. Returns when all are made.
void helpers_share(Helper** helpers, Call** calls, size_t count) {
  for (size_t i = 1; i < count; ++i) {
    helpers[i - 1]->call = calls[i];
    helpers[i - 1]->begun.next();
  }
  call_make(calls[0]);
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
