// Trains with llm.c itself: the losses of its first steps on a file of tokens, taken in order.
//
//     gcc -O2 -w -I LLM.C reference/llmc_train.c -o llmc_train -lm    (LLM.C: a copy of its source)
//     llmc_train model.bin tokens.bin B T STEPS
//
// As train_gpt2.c's own loop does (AdamW, 1e-4, 0.9, 0.999, 1e-8, no decay), without the shuffling of its DataLoader.
// Each line is a loss before its update. llmc.py train does this.

#define TESTING
#include "train_gpt2.c"

int main(int argc, char **argv) {
    if (argc != 6) { fprintf(stderr, "usage: llmc_train MODEL TOKENS B T STEPS\n"); return 2; }
    int B = atoi(argv[3]), T = atoi(argv[4]), steps = atoi(argv[5]);
    freopen("/dev/null", "w", stdout);  // what llm.c says of the model
    GPT2 model;
    gpt2_build_from_checkpoint(&model, argv[1]);
    DataLoader loader;
    dataloader_init(&loader, argv[2], B, T, 0, 1, 0);
    for (int step = 0; step < steps; step++) {
        dataloader_next_batch(&loader);
        gpt2_forward(&model, loader.inputs, loader.targets, B, T);
        gpt2_zero_grad(&model);
        gpt2_backward(&model);
        gpt2_update(&model, 1e-4f, 0.9f, 0.999f, 1e-8f, 0.0f, step + 1);
        fprintf(stderr, "%.9g\n", model.mean_loss);
    }
    return 0;
}
