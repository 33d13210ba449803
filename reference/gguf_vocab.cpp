// What llama.cpp makes of the vocabulary of a GGUF file, as a line of JSON: `gguf_vocab FILE [TEXT ...]`. gguf_vocab.py
// compiles it.
#include "gguf.h"
#include "llama-arch.h"
#include "llama-model-loader.h"
#include "llama-vocab.h"
#include <cstdio>
#include <cstdlib>

// parts of llama.cpp that a vocabulary does not need
int32_t llama_split_path(char *, size_t, const char *, int32_t, int32_t) { abort(); }
int32_t llama_split_prefix(char *, size_t, const char *, int32_t, int32_t) { abort(); }

static void list(const char * name, const std::vector<llama_token> & ids) {
    printf(",\"%s\":[", name);
    for (size_t i = 0; i < ids.size(); i++) {
        printf(i ? ",%d" : "%d", ids[i]);
    }
    printf("]");
}

int main(int argc, char ** argv) {
    llama_log_set([](ggml_log_level, const char *, void *) {}, nullptr);
    try {
        std::vector<std::string> splits;
        llama_model_loader loader(nullptr, nullptr, nullptr, argv[1], splits, nullptr, (llama_load_mode) 0, false, true,
            false, nullptr, nullptr);
        llama_vocab vocab;
        vocab.load(loader, LLM_KV(loader.get_arch()));
        printf("{\"bos\":%d,\"eos\":%d,\"add_bos\":%s", vocab.token_bos(), vocab.token_eos(),
            vocab.get_add_bos() ? "true" : "false");
        std::vector<llama_token> ends;
        for (uint32_t id = 0; id < vocab.n_tokens(); id++) {
            if (vocab.is_eog(id)) {
                ends.push_back(id);
            }
        }
        list("ends", ends);
        printf(",\"texts\":[");
        for (int i = 2; i < argc; i++) {
            printf(i > 2 ? ",{\"n\":%d" : "{\"n\":%d", i - 2);
            list("whole", vocab.tokenize(argv[i], true, true));
            list("plain", vocab.tokenize(argv[i], false, false));
            printf("}");
        }
        printf("]}\n");
    } catch (const std::exception & error) {
        printf("{\"refused\":\"%s\"}\n", error.what());
    }
}
