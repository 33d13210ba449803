"""langchain-openai against a running `limpid serve`: python reference/clients/langchain_client.py
http://127.0.0.1:8080/v1"""

from importlib.metadata import version

from langchain_core.messages import AIMessage, HumanMessage
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings

from common import BASE, check, passed, served, talk

model, chats = served()
server = {"base_url": BASE, "api_key": "none", "model": model, "max_retries": 0}

text = OpenAI(**server, max_tokens=8, temperature=0)
whole = text.invoke("Once")
check("".join(text.stream("Once")) == whole, whole)
check(text.batch(["Once", "There"])[0] == whole, "a prompt beside others has the same answer")

embeddings = OpenAIEmbeddings(**server, check_embedding_ctx_length=False)
check(len(embeddings.embed_documents(["Once", "There"])) == 2)

if chats:
    chat = ChatOpenAI(**server, max_tokens=8, temperature=0)
    answer = chat.invoke([("system", "Be brief."), ("human", "Once")])
    check(answer.usage_metadata["output_tokens"] > 0, answer)
    chunks = list(chat.stream([("system", "Be brief."), ("human", "Once")]))
    check("".join(chunk.content for chunk in chunks) == answer.content, "pieces are the whole")
    kinds = {"user": HumanMessage, "assistant": AIMessage}

    def turn(messages, bias):
        talking = ChatOpenAI(**server, max_tokens=6, seed=len(messages), logit_bias=bias)
        return talking.invoke([kinds[m["role"]](m["content"]) for m in messages]).content

    talk(turn)
passed("langchain-openai", version("langchain-openai"))
