// Runs llm.c itself on a model file: forward and backward on the tokens of a debug state.
//
//     gcc -O2 -w -I LLM.C reference/llmc_run.c -o llmc_run -lm    (LLM.C: a copy of its source)
//     llmc_run model.bin debug_state.bin out.bin [acts.bin]
//
// Of the state, only B, T, x and y are read. out.bin gets float32s: logits (B, T, V), the mean loss,
// and the gradient of every parameter, so it is what a debug state holds after y. interop.py does this.
// acts.bin gets all activations as they lie in memory, and their gradients. llmc.py programs does this.

#define TESTING
#include "train_gpt2.c"

int main(int argc, char **argv) {
    if (argc != 4 && argc != 5) { fprintf(stderr, "usage: llmc_run MODEL STATE OUT [ACTS]\n"); return 2; }
    GPT2 model;
    gpt2_build_from_checkpoint(&model, argv[1]);

    FILE *state = fopenCheck(argv[2], "rb");
    int header[256];
    freadCheck(header, sizeof(int), 256, state);
    if (header[0] != 20240327 || header[1] != 2) { fprintf(stderr, "not a debug state\n"); return 1; }
    size_t B = header[2], T = header[3];
    int *x = (int *)mallocCheck(B * T * sizeof(int));
    int *y = (int *)mallocCheck(B * T * sizeof(int));
    freadCheck(x, sizeof(int), B * T, state);
    freadCheck(y, sizeof(int), B * T, state);
    fcloseCheck(state);

    gpt2_forward(&model, x, y, B, T);
    gpt2_zero_grad(&model);
    gpt2_backward(&model);

    FILE *out = fopenCheck(argv[3], "wb");
    for (size_t i = 0; i < B * T; i++) {
        float *row = model.acts.logits + i * model.config.padded_vocab_size;
        fwrite(row, sizeof(float), model.config.vocab_size, out);
    }
    fwrite(&model.mean_loss, sizeof(float), 1, out);
    fwrite(model.grads_memory, sizeof(float), model.num_parameters, out);
    fcloseCheck(out);
    if (argc == 5) {
        FILE *acts = fopenCheck(argv[4], "wb");
        fwrite(model.acts_memory, sizeof(float), model.num_activations, acts);
        fwrite(model.grads_acts_memory, sizeof(float), model.num_activations, acts);
        fcloseCheck(acts);
    }
    return 0;
}
