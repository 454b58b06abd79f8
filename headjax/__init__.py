"""headjax: how many attention heads does a Transformer need, how large, and what can they share?"""
