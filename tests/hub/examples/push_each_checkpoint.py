from eagle3convert import convert_all, push_to_hub

for done in convert_all("run", "run-sglang", "auto", "sglang"):
    if done.status == "converted":
        push_to_hub(done.out, "acme/drafter", branch=done.out.name)
