// Fine-tunes a Hugging Face folder on prepared data without Python:
//   finetune MODEL_FOLDER PREPARED_DATA OUTPUT_FOLDER [STEPS]
// PREPARED_DATA is what `automoe data prepare` writes. OUTPUT_FOLDER/model is again a Hugging Face
// folder.
#include <automoe/automoe.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>

int main(int argc, char** argv) {
  if (argc < 4) {
    std::fprintf(stderr, "usage: %s MODEL_FOLDER PREPARED_DATA OUTPUT_FOLDER [STEPS]\n", argv[0]);
    return 2;
  }
  const std::filesystem::path data = argv[2], output = argv[3];
  try {
    automoe::CausalLM model = automoe::CausalLM::from_pretrained(argv[1]);

    automoe::TrainConfig config;
    config.train_data = data / "train";
    if (std::filesystem::exists(data / "eval")) config.eval_data = data / "eval";
    config.output_dir = output;
    config.learning_rate = 2e-5;
    config.per_device_train_batch_size = 2;
    config.max_steps = argc > 4 ? std::atoi(argv[4]) : 20;

    automoe::Trainer trainer(model, config);
    const bool complete = trainer.run([&](const automoe::StepMetrics& step) {
      std::printf("step %ld  loss %.4f  grad norm %.3f  %.0f tokens/s\n",
                  static_cast<long>(step.step), step.loss, step.grad_norm,
                  static_cast<double>(step.tokens) / step.seconds);
    });
    if (!config.eval_data.empty()) std::printf("held-out loss %.4f\n", trainer.evaluate().loss);
    model.save_pretrained(output / "model");
    std::printf("%s; saved %s\n", complete ? "done" : "stopped early, run again to resume",
                (output / "model").c_str());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "finetune: %s\n", error.what());
    return 1;
  }
}
